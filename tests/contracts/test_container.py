"""The container image, as far as it can be checked without building it: versions, its user, and its volume."""

import json
import re
import shlex
import tomllib
from pathlib import PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from microrl.cli import app

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / ".ci" / "requirements.lock").read_text()
PINNED = dict(re.findall(r"^([\w.-]+)==([^\s;]+)$", LOCK, re.MULTILINE))
PYTHON_OF_UBUNTU, GLIBC_OF_UBUNTU = {"24.04": "3.12"}, {"24.04": "2_39"}


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of the Dockerfile, in order, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / ".ci" / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in of("ENV") for pair in shlex.split(rest))


def parse(words: list[str]):
    """What the command line makes of the arguments; exits where it knows one of them not."""
    group = app
    while words and hasattr(group, "commands") and words[0] in group.commands:
        group, words = group.commands[words[0]], words[1:]
    return group.make_context("microrl", list(words), resilient_parsing=False)


def unmet(line: str) -> bool:
    wanted = Requirement(line)
    found = PINNED.get(canonicalize_name(wanted.name))
    return found is None or not wanted.specifier.contains(found)


def test_every_requirement_is_locked_at_a_version_that_the_project_allows():
    project, limits = PROJECT["project"], PROJECT["tool"]["uv"]["constraint-dependencies"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["gpu"], *limits]
    assert len(PINNED) > 200 and not [line for line in lines if unmet(line)]
    assert unmet("torch>=99") and unmet("no-such-package") and not unmet("torch")


def test_nothing_is_left_open_in_the_lock():
    lines = [line for line in LOCK.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) == len(PINNED)


def test_nothing_has_to_be_compiled_from_source():
    """The image has no compiler but gcc: every locked version has a wheel that its C library can load."""
    assert "--only-binary :all:" in LOCK and any("--only-binary :all: -r /tmp/requirements.lock" in rest for rest in of("RUN"))
    glibc = re.search(r"--python-platform x86_64-manylinux_(\S+)", LOCK)[1]
    assert glibc == GLIBC_OF_UBUNTU[of("FROM")[0].rpartition("ubuntu")[2]]


def test_image_lock_and_torch_agree_on_cuda_and_python():
    image = re.fullmatch(r"nvidia/cuda:(\d+\.\d+\.\d+)-base-ubuntu(\d+\.\d+)", *of("FROM"))
    assert PINNED["cuda-toolkit"].startswith(image[1])  # the CUDA that this torch was built for
    locked_for = re.search(r"--python-version (\S+)", LOCK)[1]
    assert locked_for == PYTHON_OF_UBUNTU[image[2]]
    assert f"Programming Language :: Python :: {locked_for}" in PROJECT["project"]["classifiers"]


def test_what_triton_compiles_with_is_there():
    installed = next(rest for rest in of("RUN") if "apt-get install" in rest).split()
    assert {"gcc", "libc6-dev", "python3-dev", "python3-venv"} <= set(installed)


def test_what_is_copied_exists_and_builds_the_package():
    copied = {source for rest in of("COPY") for source in rest.split()[:-1]}
    assert not [name for name in copied if not (ROOT / name).exists()]
    built = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"pyproject.toml", *built["packages"], *built["force-include"], PROJECT["project"]["readme"]} <= copied
    assert set(PROJECT["project"]["license-files"]) <= copied


def test_it_runs_as_a_user_without_rights_who_owns_the_volume():
    order = [name for name, _ in instructions()]
    user, group = map(int, of("USER")[-1].split(":"))  # numbers: a cluster can tell that it is not root
    assert user > 0 and group > 0 and order.index("USER") > max(at for at, name in enumerate(order) if name == "RUN")
    assert f"-o {user} -g {group} {of('VOLUME')[0]}" in of("RUN")[-1]


def test_home_and_the_working_folder_are_the_volume():
    """Caches are below HOME, runs below the working folder; and torch asks for the name of a user who may have none."""
    volume = of("VOLUME")[0]
    assert environment()["HOME"] == of("WORKDIR")[-1] == volume and PurePosixPath(volume).is_absolute()
    assert environment()["USER"] and environment()["LOGNAME"]
    elsewhere = [name for name in environment() if name.endswith(("_HOME", "_CACHE", "_CACHE_DIR", "_CACHE_ROOT"))]
    assert not elsewhere


def test_the_health_check_leaves_the_gpu_alone():
    check = of("HEALTHCHECK")[0]
    shell, option, script = json.loads(check.partition(" CMD ")[2])
    assert (shell, option) == ("sh", "-c")
    first, second = script.split(" && ")
    hidden, program, *words = shlex.split(second)
    assert first == "nvidia-smi -L" and hidden == "CUDA_VISIBLE_DEVICES=" and program == "microrl"
    context = parse(words)
    assert context.command.name == "doctor" and context.params["self_test"] is False and context.params["measure"] is False


def test_it_is_started_by_its_command():
    assert json.loads(of("ENTRYPOINT")[0]) == ["microrl"]


def test_the_guide_starts_the_image_as_it_is():
    """Each `docker run` there mounts the volume, and the image's command knows what follows its name."""
    page = (ROOT / "microrl" / "guide" / "rented.md").read_text()
    assert of("FROM")[0] in page and "docker build -f .ci/Dockerfile -t microrl ." in page
    started = [line for line in re.sub(r" \\\n\s*", " ", page).splitlines() if line.startswith("docker run ")]
    assert len(started) >= 2
    for line in started:
        before, _, after = line.partition(" microrl ")
        assert f"-v microrl:{of('VOLUME')[0]}" in before and "--gpus device=0" in before, line
        assert parse(shlex.split(after)).command.name in ("doctor", "train")
