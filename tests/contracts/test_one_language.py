"""Each routine of compiled code is written once, in the kernel language, for every target."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from llvmlite import binding

from probtorch.compiler import lang
from probtorch.compiler.lang import cuda, llvm
from probtorch.compiler.lang.builder import Builder
from probtorch.compiler.lang.llvm import LLVM
from probtorch.compiler.lang.nodes import Binary, Intrinsic, Node, Select, Value
from probtorch.compiler.lang.routines import draws, elementary
from probtorch.compiler.lang.routines.quantile import normal_quantile
from probtorch.compiler.lang.routines.sorting import SORTING
from probtorch.compiler.lang.types import BYTES
from probtorch.compiler.native import host
from probtorch.compiler.render import cuda_math, runtime
from probtorch.compiler.render.calls import write_helper
from probtorch.errors import CompileError
from probtorch.ops.rejection import SAMPLERS
from probtorch.ops.scalar import INTRINSICS

COMPILER = Path(lang.__file__).parents[1]


def one(name):
    """The name of a routine without the type of its elements."""
    stem, _, ty = name.rpartition("_")
    return stem if ty in (*BYTES, "d", "s") else name


# Where each routine is written: what `inspect` says of the function that writes it.
ROUTINES = {
    **{one(name): routine.body for name, routine in cuda_math.FUNCTIONS.items()},
    **{f"pt_{name}": formula for name, formula in elementary.FUNCTIONS.items()},
    **{f"pt_draw_{name}": sampler.formula for name, sampler in SAMPLERS.items()},
    "pt_normal_quantile": normal_quantile,
}
PLACES = {
    "elementary": "pt_exp pt_log pt_log1p pt_log1p_unit pt_expm1 pt_tanh",
    "special": "pt_log_ndtr pt_digamma pt_lgamma pt_betaln pt_gamma_term pt_gammainc pt_gammaincc "
    "pt_betainc pt_i0e pt_i1e",
    "zeta": "pt_zeta",
    "quantile": "pt_normal_quantile pt_normal_of_uniform",
    "philox": "pt_philox",
    "integers": "pt_power pt_bits_to_integers",
    "incomplete": "pt_gamma_log_implicit_1 pt_gamma_log_implicit_2",
    "incomplete_gamma": "pt_gammainc_grad_a_1 pt_gammainc_grad_a_2",
    "incomplete_beta": "pt_betainc_grad_10 pt_betainc_grad_01 pt_betainc_grad_20 "
    "pt_betainc_grad_11 pt_betainc_grad_02",
    "variates": "pt_von_mises_slope",
    "rejection": "pt_draw_log_gamma pt_draw_gamma pt_draw_von_mises pt_draw_polya_gamma",
    "rejected_counts": "pt_draw_poisson pt_draw_binomial pt_draw_progeny",
    "sorting": "pt_argsort pt_order_statistic pt_searchsorted",
    "matrices": "pt_gemm pt_gemm_wide pt_downdate pt_trsm pt_trsm_wide pt_cholesky "
    "pt_cholesky_together",
    "sparse": "pt_sparse_product",
    "elimination": "pt_eliminate pt_solve pt_inv pt_slogdet pt_det",
    "blocks": "pt_exchange pt_block_sum pt_block_prod pt_block_amax pt_block_amin pt_block_argmax "
    "pt_block_argmin",
}


def test_every_routine_is_written_in_its_one_place():
    places = {name: stem for stem, names in PLACES.items() for name in names.split()}
    found = {}
    for name, body in ROUTINES.items():
        found[name] = Path(inspect.getsourcefile(getattr(body, "func", body))).stem
    assert found == places


def test_no_routine_is_written_as_text_of_a_target():
    names = "|".join(map(re.escape, ROUTINES))
    written = re.compile(
        rf"define [^\n]*@({names})(_f\d\d)?\(|__device__ [\w ]+ ({names})(<[^\n]*>)?\("
    )
    for path in COMPILER.rglob("*.py"):
        assert not (found := written.search(path.read_text())), (path.name, found)


# Instructions of LLVM, in text whose parts that are computed are "%".
INSTRUCTION = re.compile(
    r"\b(getelementptr|insertelement|shufflevector|atomicrmw|cmpxchg|ptrtoint|inttoptr) |\bbr label"
    r"|\bbr i1| = phi |\bcall [^ ]+ [@%][^ ]*\(|^ *ret |\b(load|alloca) (%|\[|ptr|i\d|atomic)"
    r"|\bstore [^ ]+ %|\b(icmp|fcmp) [a-z]{2,3} |\b(fadd|fmul|zext|trunc|bitcast) [^ ]+ %",
    re.MULTILINE,
)


def texts(path):
    """The strings in a file, each computed part of one as "%"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "%" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_only_the_printer_writes_instructions_of_llvm():
    found = {path for path in COMPILER.rglob("*.py") if any(map(INSTRUCTION.search, texts(path)))}
    assert found == {Path(llvm.__file__)}


# Modules of the runtime whose functions take and give numbers alone, or have both targets anyway.
BOTH = [
    name
    for name, module in runtime._modules().items()
    if all("ptr" not in [result, *types] for result, types in module.functions.values())
    or name in SORTING
]


@pytest.mark.parametrize("name", BOTH)
def test_a_module_of_the_runtime_has_both_targets(name):
    module = cuda.CudaModule("t")
    runtime._modules()[name].write(module)
    for symbol in runtime._modules()[name].functions:
        assert f" {symbol}(" in module.text()
    with host.lock:
        binding.parse_assembly(runtime.module_text(name)).verify()


def test_a_sampler_has_both_targets():
    for name in SAMPLERS:
        for module in (cuda.CudaModule("t"), llvm.LlvmModule()):
            draws.write_draw(module, name)
            assert f"pt_draw_{name}(" in module.functions[-1]
    write_helper(module, "pt_power")
    assert "@pt_power(" in module.functions[-1]


@pytest.mark.parametrize("name", sorted(INTRINSICS))
def test_an_intrinsic_has_a_spelling_on_both_targets(name):
    row = INTRINSICS[name]
    on_cpu_alone = ("iv", "ive", "jv", "kv", "kve", "k0", "k1", "k0e", "k1e")
    for module, missing in ((llvm.LlvmModule(), ()), (cuda.CudaModule("t"), on_cpu_alone)):
        w = module.function("f", "double", ["double"] * row.arity)
        if name in missing:
            with pytest.raises(CompileError, match=name):
                w.put(Intrinsic(row, w.arguments))
        else:
            w.finish(w.put(Intrinsic(row, w.arguments)))
            assert row.cuda in module.functions[0] or isinstance(module, llvm.LlvmModule)


def test_every_node_has_a_printer_for_both_targets():
    kinds = {kind.__name__ for kind in Node.__subclasses__()}
    assert 15 <= len(kinds) <= 21
    for printer in (llvm.LlvmPrinter, cuda.CudaPrinter):
        own = {name.strip("_").lower() for name in vars(printer)}
        assert {kind.lower() for kind in kinds} <= own


def test_nodes_refuse_types_that_do_not_fit():
    s = Builder(llvm.LlvmModule(), LLVM)
    whole, real, flag = (Value("%x", ty, s) for ty in ("i64", "double", "i1"))
    with pytest.raises(CompileError, match="mixes types"):
        Binary("add", whole, real)
    with pytest.raises(CompileError, match="a choice"):
        Select(flag, whole, real)
    with pytest.raises(CompileError, match="a choice"):
        Select(whole, real, real)
    with pytest.raises(CompileError, match="exp"):
        Intrinsic(INTRINSICS["exp"], [whole])
