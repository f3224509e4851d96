"""What a recording met of Python: watched, entered, or a reason to stay eager.

`environment` walks from a function to all that it can reach; `kinds` says of every object to which
of the three it belongs; `entering` knows types that tell what they consist of; `watches` compare
what was found with what is there now; `reading` gets at what objects hold without running code of
theirs; `code` reads names out of bytecode; `calls` hears what the
user's code calls while it is recorded. There is no fourth case: an unknown type is a reason to stay
eager.
"""
