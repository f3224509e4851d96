"""Others who look while something is stored: at every instruction of it, so that no luck is needed.

Threads switch between any two instructions, and within those that let go of the interpreter's lock;
what is right before and after each instruction is right for whoever looks from another thread.
"""

import sys


def watched(work, look, *modules):
    """Run `work`, and `look` before each instruction of code in these modules, and at the end."""
    files = {module.__file__ for module in modules}

    def at(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            look()
        return at

    before = sys.gettrace()
    sys.settrace(at)
    try:
        work()
    finally:
        sys.settrace(before)
    look()
