"""What the programs share that the ranks of a job run: checks, and the cases by their names."""

import ring_attention as ra


def check(condition, *text):
    if not condition:
        raise AssertionError(f"rank {ra.rank()}: {' '.join(map(str, text))}")


def refused(kind, text, call):
    """The call raises such an error, and its text has these words."""
    try:
        call()
    except kind as error:
        check(text in str(error), text, "is not in:", error)
    else:
        check(False, "no error:", text)


def run(functions, words):
    """The cases in `words`, each the name of a function with its arguments, such as `failing:kernel`."""
    for word in words:
        name, *arguments = word.split(":")
        functions[name](*arguments)
    if ra.rank() == 0:
        print(f"all is well on {ra.size()} ranks")
