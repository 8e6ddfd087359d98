"""What is typed wrong is answered with the word that was probably meant and the usage of that command."""

import pytest

from ssmpi import cli


def refused(capsys, *words):
    """What a command says that ends with 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("launch", "run.toml", "--overwite"), "--overwite; did you mean '--overwrite'?"),
        (("launch", "run.toml", "--ressume=runs/x"), "--ressume=runs/x; did you mean '--resume'?"),
        (("submit", "run.toml", "--site", "s.toml", "--dryrun"), "--dryrun; did you mean '--dry-run'?"),
        (("inspect", "runs/x", "--no-checksum"), "--no-checksum; did you mean '--no-checksums'?"),
        (("bench", "study", "s.toml", "--tabel"), "--tabel; did you mean '--table'?"),
        (("doctor", "--xyzzy"), "--xyzzy"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_and_the_commands_usage(capsys, words, answer):
    said = refused(capsys, *words)
    command = " ".join(words[: 2 if words[0] == "bench" else 1])
    assert said.startswith(f"usage: ssmpi {command} ")
    assert said.endswith(f"ssmpi {command}: error: unrecognized arguments: {answer}\n")


def test_a_study_file_that_is_not_there_is_called_one(capsys):
    assert refused(capsys, "bench", "study", "nosuch") == "error: nosuch: no such study file\n"
