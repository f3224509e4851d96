"""What PyTorch's users write by name is taken by that name, or stands here with its reason."""

import inspect

import pytest

import probtorch
from tests.contracts.pytorch_arguments import arguments, functions_of_both, room, table

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
    "some compute_uv": ("qr svd Tensor.qr Tensor.svd", "both are those of linalg"),
    "symmetric": ("matrix_rank", "taken away by PyTorch; hermitian is its name"),
    "input": (
        "cholesky det inverse matrix_power matrix_rank orgqr pinverse qr slogdet svd Tensor.put",
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


@pytest.mark.parametrize("place", ["", "linalg", "special", "fft", "nn.functional", "Tensor"])
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
