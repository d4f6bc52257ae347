r"""Plain text: to type into bash or zsh, with control characters escaped for terminals, and in tables of columns.

In text to type, a byte of a path that is no UTF-8 is `$'\xff'`.
"""

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

TYPABLE = "shoal.typable"
"""Error handler of streams for what their encoding lacks: such bytes as `typable` has them, the rest escaped."""
_BYTES = re.compile("([\udc80-\udcff]+)")
"""What stands for bytes that are not UTF-8 in a path, by `os.fsdecode`."""
_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]\d+)?%?|[-+]?(inf|nan)|-")


def typable(text: str) -> str:
    """Return `text` with bytes of paths that are not UTF-8 in quotes for bash and zsh."""
    return _BYTES.sub(lambda found: "$'" + "".join(f"\\x{ord(byte) - 0xDC00:02x}" for byte in found[0]) + "'", text)


def join_command(words: Iterable[str]) -> str:
    """Join words to a command, as `shlex.join` does, also where they hold such bytes."""
    return " ".join(typable(_BYTES.sub(r"'\1'", shlex.quote(word))) for word in words)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = typable(error.object[error.start : error.end])
    return text.encode(error.encoding, "backslashreplace").decode(error.encoding), error.end


codecs.register_error(TYPABLE, _escape)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, except for line ends and tabs, and with paths as `typable`."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in typable(text)
    )


def or_dash(value: float | None, form: str = "") -> str:
    """Return a number as text; a dash for none."""
    return "-" if value is None else format(value, form)


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table as lines whose columns are as wide as their widest cells; columns of numbers are aligned right."""
    cells = [[printable(cell) for cell in row] for row in (titles, *rows)]
    each_column = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in each_column]
    numeric = [len(column) > 1 and all(map(_NUMBER.fullmatch, column[1:])) for column in each_column]
    for row in cells:
        aligned = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        ]
        yield "  ".join(aligned).rstrip()


def pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a name and its value in each line, with the values below each other."""
    printed = [(printable(name), printable(value)) for name, value in rows]
    width = max((len(name) for name, _ in printed), default=0)
    for name, value in printed:
        yield f"  {name:<{width}}    {value}".rstrip()


def size(count: float) -> str:
    """Return a number of bytes in words, such as ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:  # noqa: PLR2004  the base of all these units
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"  # noqa: PLR2004
        count /= 1024
    return f"{count:.1f} TiB"
