"""Programs with subcommands: `PROGRAM SUBCOMMAND ARGUMENTS... --flag=value`.

absl hands over what is no flag, wherever it stands, as `argv`. Flags are those of the program; each
subcommand names the ones that it knows, and the others are refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from absl import flags

from tff_pfl.experiment import check_writable
from tff_pfl.names import unknown_name

PICTURES = (".png", ".pdf", ".svg")


class CommandLineError(ValueError):
    """A command line that a program cannot follow; the message says what would be right."""


class Subcommand(NamedTuple):
    """What a program does by one name.

    Attributes:
        run: From the arguments to what is printed, if anything.
        arguments: How they are written, as "NAME:DIR...". One at least has to be given, and no
            more if it does not end in dots.
        flags: The names of those that it knows, besides `output`.
        output: The endings that the file of `--output` may have, which is needed then; none: there
            is no such file.
    """

    run: Callable[[Sequence[str]], str | None]
    arguments: str
    flags: Sequence[str] = ()
    output: Sequence[str] = ()

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The names of all that it knows."""
        return (*(["output"] if self.output else []), *self.flags)


def run_subcommand(argv: Sequence[str], subcommands: Mapping[str, Subcommand]) -> str | None:
    """Runs the one that a command line names.

    Args:
        argv: What absl hands over: the program, and all that is no flag.
        subcommands: By their names.

    Returns:
        What is to be printed, if anything.

    Raises:
        CommandLineError: If there is no such subcommand, with the nearest one; or it has too few
            arguments, or too many; or a flag is one of other subcommands only; or the output is
            missing, or has another ending.
        OutputDirectoryError: If the output cannot be written.
    """
    if len(argv) < 2:
        raise CommandLineError(f"Name a subcommand: {', '.join(subcommands)}. See --help.")
    _, name, *arguments = argv
    if name not in subcommands:
        raise CommandLineError(unknown_name("subcommand", name, subcommands))
    subcommand = subcommands[name]
    usage = f"{name} {subcommand.arguments}"
    if not arguments:
        raise CommandLineError(f"{name} has no arguments: {usage}")
    if len(arguments) > 1 and not subcommand.arguments.endswith("..."):
        raise CommandLineError(f"{name} has too many arguments, {arguments[1:]}: {usage}")
    _check_flags(name, subcommands)
    if subcommand.output:
        _check_output(name, flags.FLAGS["output"].value, subcommand.output)
    return subcommand.run(arguments)


def _check_flags(name, subcommands):
    known = subcommands[name].all_flags
    users = {}
    for other, subcommand in subcommands.items():
        for flag in subcommand.all_flags:
            users.setdefault(flag, []).append(other)
    for flag in users:
        if flags.FLAGS[flag].present and flag not in known:
            raise CommandLineError(
                f"{name} knows no --{flag}, which is of {', '.join(users[flag])}. It knows "
                f"{', '.join(f'--{known_flag}' for known_flag in known) or 'no flag'}."
            )


def _check_output(name, path, endings):
    if path is None:
        raise CommandLineError(f"{name} needs --output, a file that ends in {_either(endings)}.")
    if not path.endswith(tuple(endings)):
        raise CommandLineError(f"--output of {name} ends in {_either(endings)}, found {path!r}.")
    check_writable(path)


def _either(names):
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
