"""What PyTorch's users write by name is taken by that name, or stands here with its reason."""

import inspect

import pytest

import probtorch
from tests.contracts.pytorch_arguments import ROOMS, arguments, functions_of_both, room, table

# By the name of an argument: the functions whose it is ("*" for all), and why it is not taken.
NOT_TAKEN = {
    "layout memory_format pin_memory": ("*", "memory is dense, in one order, and not pinned"),
    "pickle_module pickle_protocol _use_new_zipfile_serialization _disable_byteorder_record": (
        "save load",
        "files are no pickles",
    ),
    "_complex ListTensor Listint None TupleTensor kwargs self": ("*", "words of the documentation"),
    "name model isolate_recompiles recompile_limit shapes_spec": (
        "compile",
        "of another compiler; what is compiled comes first",
    ),
    "some": ("qr Tensor.qr", "that of linalg"),
    "symmetric": ("matrix_rank", "taken away by PyTorch; hermitian is its name"),
    "input": (
        "cholesky det inverse matrix_power matrix_rank orgqr pinverse qr slogdet Tensor.put",
        "the function of linalg, whose A it is",
    ),
    "A": ("linalg.diagonal", "the function of tensors, whose input it is"),
    "out": (
        "bitwise_not histogramdd fft.fftfreq fft.rfftfreq nn.functional.normalize",
        "nothing is computed into memory there",
    ),
    # The documentation of methods and of older names has words that PyTorch itself refuses, or
    # other ones than the function of the same name.
    "batch2 divisor dividend dimension indices input2 input3 other split_size src tensor tensor2 "
    "value y axis0 axis1 sizes split_size_or_sections": ("*", "the function says otherwise"),
    "size repeats stride storage_offset": (
        "Tensor.expand Tensor.set_ Tensor.repeat",
        "sizes come by place",
    ),
    "from": ("Tensor.random_ Tensor.uniform_", "no name in Python"),
    "copy device": ("from_dlpack", "write .clone() or .to(device)"),
    "carried_inputs": ("while_loop", "init, as in JAX"),
    "int": ("set_num_threads", "num_threads"),
    "min_value max_value": ("nn.Hardtanh", "min_val and max_val, for long in PyTorch, too"),
    "check_undefined_grad check_grad_dtypes check_batched_grad check_batched_forward_grad "
    "check_forward_ad check_backward_ad gen_non_contig_grad_outputs check_fwd_over_rev "
    "check_rev_over_rev masked nondet_tol": (
        "autograd.gradcheck autograd.gradgradcheck",
        "one comparison of the tape with differences is what there is",
    ),
    "grad_variables": ("autograd.backward", "grad_tensors, for long in PyTorch, too"),
    "orig_func": ("autograd.enable_grad", "the decorator, which is called by place"),
    "randomness strict _preallocate_and_copy": (
        "func.jacfwd func.jacrev func.jvp",
        "as by default",
    ),
}
EXCUSED = {
    (argument, function)
    for names, (functions, _) in NOT_TAKEN.items()
    for argument in names.split()
    for function in functions.split()
}


def parameters(name):
    place, _, last = name.rpartition(".")
    return inspect.signature(getattr(room(probtorch, place), last)).parameters


@pytest.mark.parametrize("place", ROOMS)
def test_arguments_have_pytorchs_names(place):
    missing = set()
    for name, wanted in table().items():
        if name.rpartition(".")[0] != place:
            continue
        ours = parameters(name)
        if any(p.kind is p.VAR_KEYWORD for p in ours.values()):
            continue
        missing |= {(argument, name) for argument in wanted if argument not in ours}
    assert {m for m in missing if m not in EXCUSED and (m[0], "*") not in EXCUSED} == set()


def test_every_excuse_is_needed():
    needed = {
        argument
        for name, wanted in table().items()
        for argument in wanted
        if argument not in parameters(name)
    }
    assert {argument for argument, _ in EXCUSED} <= needed


def test_the_table_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    known = table()
    found = {
        name: arguments(one, name.split(".")[-1])
        for name, one, _ in functions_of_both(torch)
        if name in known
    }
    assert found == known
