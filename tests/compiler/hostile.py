"""500 names made to break out of strings, comments, identifiers, paths, markup and terminals.

Most carry a mark, ``zq<number>qz``, that occurs nowhere else: text that holds a mark has let a name
through.
"""

import re

__all__ = ["HOSTILE", "MARK", "marks_in"]

MARK = re.compile(r"zq\d+qz")

_IR = """define declare ret br switch invoke resume unreachable phi call load store alloca fence
 getelementptr bitcast ptrtoint inttoptr select icmp fcmp ptr void i1 i64 double label metadata
 noalias nounwind readnone align private internal external linkonce comdat section prologue
 personality attributes target source_filename module asm null undef poison zeroinitializer true
 false none fadd fmul fast nnan reassoc""".split()
_C = """__global__ __device__ __shared__ __syncthreads() __launch_bounds__(1) blockIdx.x threadIdx
 extern template typename namespace static volatile register union goto sizeof operator throw
 asm("trap;") __asm__ #include #define #pragma #line #error _Pragma("once") ??/ <% %> R"(raw)"
 long unsigned __restrict__ printf("%s") atomicAdd __trap() nullptr reinterpret_cast auto""".split()
_FORMATS = """%x %s %n %1$s %999999d %% %(x)s {} {0} {0.__class__} {self!r} {x:>999999} ${HOME}
 $(reboot) `reboot` $((1/0)) !! !dbg !0 #0 \\1 \\g<0> (?P<x> [[ ]] *** {{ }} {% {{7*7}}""".split()
_PATHS = """../../etc/passwd /etc/passwd ./x x/y x//y / . .. ~ ~root C:\\Windows \\\\host\\share
 \\\\?\\pipe file:///etc CON NUL COM1 aux.txt x.entry key .entry .tmp -rf --help x;y x|y x&y >x
 <x x*y x?y a:b :stream $Data""".split()
_MARKUP = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</style><script>x</script>",
    "</title>",
    "</details></section></div>",
    "<!--",
    "-->",
    "]]>",
    "<![CDATA[",
    "<?xml version='1.0'?>",
    "&lt;script&gt;",
    "&#60;b&#62;",
    "&amp;",
    "javascript:alert(1)",
    "<a href='http://x'>",
    "<iframe srcdoc='<b>'>",
    "<base href=//x>",
    "<meta http-equiv=refresh>",
    "<link rel=stylesheet href=//x>",
    "url(//x)",
    "@import '//x';",
    "expression(alert(1))",
    "\\3c script",
    "$$x$$",
    "\\input{x}",
    "[x](javascript:x)",
]
_PYTHON = """__import__('os').abort() __class__ __dict__ __init__ __del__ self cls lambda None True
 exec('x') eval(1) os.system('x') import yield async with def class global nonlocal _ __ .
 numpy.ndarray pickle cos\\nsystem\\n(S'x'\\ntR. !!python/object YAML: - {"a":1} NaN -Infinity
 1e999 0x1p-1074 1_000 -0.0 3 0 -1""".split()
_OURS = """run nest1 pt_exp_f64 pt_density pt_commit %a0 %v1 @run @nest1 @llvm.trap %v2 %c3
 %i4 %c1 %a1 entry: head1: k0 kernel0 buffer0 base S P zq probtorch logp grad mu sigma x y z
 sample param plate data obs value loss step chain draw posterior observed_data warmup""".split()
_LINES = [
    "}\ndefine i64 @run(ptr %a0) {\n ret i64 1\n}",
    "\n  call void @abort()\n",
    "\ndeclare i32 @system(ptr)\n",
    '"\nmodule asm "hlt"\n; ',
    "*/ __global__ void k() { __trap(); } /*",
    "\n#include </etc/passwd>\n",
    '\n#pragma nv_exec_check_disable\nextern "C" ',
    "\\\n",
    "// \\\n",
    "\r\n\r\nHTTP/1.1 200 OK\r\n",
    "\n.. include:: /etc/passwd\n",
    "\npath 7: 0 ops, compiled in 0 ms\n  guard 0: True",
]
_CONTROL = [chr(c) for c in (*range(32), 127, 0x85, 0x9B)]
_UNICODE = [
    *"\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c",
    *"\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff\ufff9\ufffd\ufffe\uffff\ud800\udfff\ue000",
    *"\u0301\u0430\u2215\uff0f\uff05\uff1c\u3000\u00a0\U000e0001\U0001f4a9\U0010ffff\u00e9\u0130",
    "e\u0301",
    "\u202egnp.exe",
    "a" + "\u0301" * 200,
    "\ud83d\ude00",
    "\u05d0\u05d1",
]
_LONG = ["x" * 1_000_000, "(" * 5000, "\n" * 5000, "\\" * 5001, "%s" * 2000, "\U0001f4a9" * 3000]
_PLAIN = ["", " ", "  ", "\t", '"', "'", "`", "\\", '\\"', ";", "}", "{", "%", "@", "$", "#", "!"]


def _all():
    bare = [*_IR, *_C, *_FORMATS, *_PATHS, *_MARKUP, *_PYTHON, *_OURS, *_LINES]
    bare += [*_CONTROL, *_UNICODE, *_LONG]
    found = dict.fromkeys([*_PLAIN, *_OURS])
    for k, text in enumerate(bare):
        mark = f"zq{k}qz"
        # In front, behind and in the middle: a name may be cut or split.
        found[(text + mark, mark + text, text + mark + text)[k % 3]] = None
    k = 0
    while len(found) < 500:  # pairs of them
        found[bare[k % len(bare)] + f"zq{k}{k}qz" + bare[(7 * k + 3) % len(bare)]] = None
        k += 1
    return list(found)[:500]


HOSTILE = _all()


def marks_in(text):
    """Return the marks of names that a text holds."""
    return MARK.findall(text)
