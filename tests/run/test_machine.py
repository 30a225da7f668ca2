"""Machines that cannot run what they are asked to: said in one line with a remedy, before torch is imported."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pretend
import pytest
import users
from pretend import A40, P100, SLICED, SLICES, T4

from microrl.config import resolve
from microrl.models import cards, driver
from microrl.plan import devices, here
from microrl.plan.source import shape_of
from microrl.plan.workload import Workload
from microrl.rollout import preflight
from microrl.rollout.preflight import Installed
from microrl.run import caches, machine, room

TRAIN = ["train", "--model", "Qwen2.5-1.5B-Instruct", "--rank", "64", "--steps", "10"]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CC", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Put this process on a machine whose nvidia-smi answers like this, with a torch for CUDA 13 and vLLM."""

    def put(*, cuda="13.0", vllm=True, **answers):
        monkeypatch.setenv("PATH", pretend.nvidia_smi(tmp_path / "bin", **answers))
        monkeypatch.setattr(driver, "installed_torch", lambda: driver.Torch("2.13.0", cuda))
        monkeypatch.setattr(preflight, "installed", lambda: Installed("vllm", "0.32.0") if vllm else None)
        header = tmp_path / "Python.h"
        header.touch()
        monkeypatch.setattr(machine.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
        (tmp_path / "bin" / "gcc").touch(mode=0o755)

    return put


@pytest.fixture
def found(tmp_path):
    """What is found for a run of this configuration, as (status, text)."""

    def examine(*presets, runs=1, **flags):
        config = resolve(presets, {"budget.steps": 10, **{key.replace("__", "."): value for key, value in flags.items()}})
        told = machine.examine(config, tmp_path / "run", runs=runs)
        return [(one.status, f"{one.says}; {one.do}") for one in told]

    return examine


def refused(tmp_path, *arguments, PATH, PYTHONPATH):
    """The real command where no torch can be imported; returns (its words, its processor seconds)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "microrl", *arguments, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PATH": PATH, "PYTHONPATH": PYTHONPATH, "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2 and not done.stdout and not (tmp_path / "run").exists(), done.stderr
    words = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in words][-2:] == ["error", "hint"], done.stderr
    return words, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# ---- the whole command


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(
    ("answers", "cuda", "error", "hint"),
    [
        ({"driver": "550.54.14"}, "13.0", "NVIDIA driver 550.54.14 is too old: torch 2.13.0 is built for CUDA 13.0", "rent a"),
        ({"cards": P100}, "13.0", "the Tesla P100-PCIE-16GB has compute capability 6.0, but torch 2.13.0 (CUDA 13.0) has no code "
         "for less than 7.5", "use a T4 or a newer GPU"),
        ({}, None, "torch 2.13.0 is a build for CPUs, but this machine has NVIDIA driver 580.65.06", "pip install"),
    ],
    ids=["old driver", "old card", "torch for CPUs"],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_torch_is_imported(tmp_path, answers, cuda, error, hint):
    path = pretend.nvidia_smi(tmp_path / "bin", **answers)
    words, seconds = refused(tmp_path, *TRAIN, PATH=path, PYTHONPATH=pretend.packages(tmp_path / "site", cuda=cuda))
    assert len(words) == 2 and error in words[0] and hint in words[1] and 'CUDA_VISIBLE_DEVICES=""' in words[1]
    assert seconds < 3.0, "of the processor; without load a second of the clock"


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(
    "arguments",
    [("eval", "Qwen2.5-1.5B-Instruct"), ("sweep", "micro-r8", "--ranks", "8,64", "--steps", "2"),
     ("warmup", "Qwen2.5-1.5B-Instruct", "--steps", "2")],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_the_other_commands_ask_too(tmp_path, arguments):
    path = pretend.nvidia_smi(tmp_path / "bin", cards=P100)
    words, _ = refused(tmp_path, *arguments, PATH=path, PYTHONPATH=pretend.packages(tmp_path / "site"))
    assert "compute capability 6.0" in words[-2]


@pytest.mark.slow
def test_no_compiler_and_no_header_are_one_error(tmp_path):
    """vLLM would make four starts that fail, and the run would go on several times slower."""
    path = pretend.without_compilers(tmp_path / "few", pretend.nvidia_smi(tmp_path / "bin"))
    site = os.pathsep.join([pretend.packages(tmp_path / "site"), pretend.python_without_header(tmp_path / "custom")])
    words, _ = refused(tmp_path, *TRAIN, PATH=path, PYTHONPATH=site)
    assert len(words) == 2 and "no gcc and no clang" in words[0] and f"{tmp_path}/custom/Python.h is missing" in words[0]
    assert "apt install gcc" in words[1] and "-dev" in words[1] and "--engine transformers" in words[1]


@pytest.mark.slow
def test_a_tool_that_hangs_is_waited_for_and_given_up(tmp_path, monkeypatch):
    path = pretend.nvidia_smi(tmp_path / "bin", hangs=True)
    words, _ = refused(tmp_path, *TRAIN, PATH=path, PYTHONPATH=pretend.packages(tmp_path / "site"))
    assert words[0] == "waiting for nvidia-smi, at most 10 s" and "does not answer within 10 s: the driver hangs" in words[1]


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("user", [users.THIS, users.OTHER])
def test_a_home_that_cannot_be_written(user):
    """The caches go elsewhere, and that is said: FlashInfer makes its own when it is imported, with an error of its own."""
    code = """
import os, sys
from pathlib import Path
from microrl.models import hub
from microrl.run import caches
os.environ["HOME"] = sys.argv[1]
del os.environ["XDG_CACHE_HOME"]
print(caches.move(with_compilers=True).says)
for name in ("XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
    place = Path(os.environ[name])
    place.mkdir(parents=True, exist_ok=True)
    (place / "file").write_text("kept")
print(hub.cache_folder(), hub.hub_folder(), Path(os.environ["XDG_CACHE_HOME"]).stat().st_mode & 0o777)
print(caches.move(with_compilers=True))
"""
    with users.own_folder(user) as folder:
        home = folder / "home"
        if user == users.THIS:
            home.touch()  # to root, no folder is closed
        else:
            home.mkdir(mode=0o555)
        done = users.run(user, folder, "-c", code, home)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    place = re.fullmatch(rf"{home} is not writable: caches are in ({folder}/microrl-cache-\d+) instead", first)[1]
    assert second == f"{place}/microrl {place}/huggingface/hub {0o700}"
    assert third == "None", "moved once"


def test_what_the_user_has_set_stays_and_what_is_downloaded_is_used(monkeypatch, tmp_path):
    home = tmp_path / "home"
    (home / ".cache/huggingface/hub/models--a--b").mkdir(parents=True)
    monkeypatch.setattr(caches.files, "is_writable", lambda place: home not in (place, *place.parents))
    environment = {"HOME": str(home), "TRITON_CACHE_DIR": str(home / "mine")}
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path))
    assert str(home) in caches.move(environment, with_compilers=True).says
    place = f"{tmp_path}/microrl-cache-{os.getuid()}"
    assert environment == {
        "HOME": str(home), "TRITON_CACHE_DIR": str(home / "mine"), "XDG_CACHE_HOME": place, "CUDA_CACHE_PATH": f"{place}/cuda",
        "FLASHINFER_WORKSPACE_BASE": f"{place}/flashinfer", "HF_HUB_CACHE": f"{home}/.cache/huggingface/hub",
    }  # fmt: skip
    mine = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert caches.move(mine, with_compilers=True) and mine["TRITON_CACHE_DIR"] == f"{tmp_path}/cache/triton"
    assert mine["XDG_CACHE_HOME"] == f"{tmp_path}/cache"
    assert caches.move({"HOME": str(home), "XDG_CACHE_HOME": str(tmp_path)}, with_compilers=False) is None


def test_nobody_else_can_have_put_something_into_the_caches(monkeypatch, tmp_path):
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path))
    planted = tmp_path / f"microrl-cache-{os.getuid()}"
    planted.mkdir()
    assert caches._private_folder() == planted
    planted.chmod(0o777)
    assert caches._private_folder() != planted
    planted.rmdir()
    planted.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert caches._private_folder() != planted


# ---- the card that is used


@pytest.mark.parametrize(
    ("environment", "card", "seen", "is_sure"),
    [
        ({}, "NVIDIA A40", 2, False),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "Tesla T4", 2, True),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "NVIDIA A40", 1, True),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "Tesla T4", 1, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0404"}, "Tesla T4", 1, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a40, 7, 0"}, "NVIDIA A40", 1, True),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, None, 0, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-beef"}, None, 0, True),
    ],
)
def test_the_card_that_cuda_will_use(on, environment, card, seen, is_sure):
    """nvidia-smi lists the T4 first, by slot; CUDA the A40, which is faster."""
    on(cards="0" + T4[1:] + "\n1" + A40[1:])
    choice = cards.chosen(cards.all_here(), environment)
    assert (choice.card and choice.card.name, len(choice.seen), choice.is_sure) == (card, seen, is_sure)


@pytest.mark.parametrize(
    ("visible", "name", "gb"),
    [(None, "MIG 1g.10gb", 10), ("MIG-3333", "MIG 3g.40gb", 40), ("GPU-a1a1", "MIG 1g.10gb", 10), ("MIG-99", None, None)],
)
def test_a_slice_has_the_memory_of_its_profile(on, visible, name, gb):
    on(cards=SLICED, slices=SLICES)
    card = cards.chosen(cards.all_here(), {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}).card
    assert card is None if name is None else (card.name, card.total_bytes) == (f"NVIDIA A100-SXM4-80GB {name}", gb * 10**9)


def test_a_card_in_mig_mode_without_slices_is_passed_over(on):
    on(cards=f"{SLICED}\n{T4}", slices="GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a1a1a1a1-0000-0000-0000-000000000000)")
    assert cards.chosen(cards.all_here(), {}).card.name == "Tesla T4"


def test_the_plan_is_for_the_card_that_is_used(on, monkeypatch):
    monkeypatch.setattr(driver, "problem", lambda: None)
    on(cards=f"{A40}\n{T4}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    device, free_gb = here.gpu()
    assert device.name == "t4" and free_gb == pytest.approx(14900 * 2**20 / 1e9)
    on(cards=SLICED, slices=SLICES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3333")
    device, free_gb = here.gpu()
    assert device.memory_gb == free_gb == 40 and "MIG 3g.40gb" in device.name
    on(cards=SLICED.replace("Enabled", "Disabled"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert here.gpu().device.name == "a100", "with the table's memory, where the driver does not tell"
    on(cards="")
    assert here.gpu() is None


# ---- warnings, and what is wrong with the card


def test_a_machine_that_is_fit_is_told_nothing(on, found, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    on()
    assert found() == []


def test_without_a_driver_nothing_is_asked(found, monkeypatch):
    monkeypatch.setattr(driver, "PROC", Path("/nowhere"))
    monkeypatch.setattr(driver.subprocess, "Popen", None)
    monkeypatch.setattr(room, "_workload", None)
    monkeypatch.setattr(room, "free_bytes", lambda place: 21e9)
    assert found() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(driver, "PROC", Path("/"))
    assert found() == []


@pytest.mark.parametrize(
    ("visible", "answers", "status", "says", "do"),
    [
        (None, {"cards": f"{A40}\n{'1' + A40[1:]}"}, "warning", "another GPU stays idle: a run uses one, the NVIDIA A40 (GPU 0)",
         "CUDA_VISIBLE_DEVICES=N"),
        ("1", {"cards": f"{A40}\n{T4}"}, "warning", "the run will probably use the Tesla T4: CUDA numbers the fastest first",
         "set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both number by slot"),
        ("3", {}, "problem", "CUDA_VISIBLE_DEVICES=3 names none of this machine's GPUs",
         "unset CUDA_VISIBLE_DEVICES, or set it to one of: 0 (NVIDIA A40); "),
        ("3", {"cards": f"{A40}\n{T4}"}, "problem", "CUDA_VISIBLE_DEVICES=3 names none",
         "one of: GPU-a40a40a4-0000-0000-0000-000000000000 (NVIDIA A40), GPU-04040404-"),
        (None, {"cards": f"{P100}\n{T4}"}, "problem", "the Tesla P100-PCIE-16GB has compute capability 6.0",
         "CUDA_VISIBLE_DEVICES=GPU-04040404-0000-0000-0000-000000000000 takes the Tesla T4"),
        (None, {"cards": SLICED}, "problem", "MIG mode is on, but no MIG instance exists, so CUDA sees no GPU",
         "or turn MIG off: `nvidia-smi -i 0 -mig 0`"),
        ("0", {"cards": SLICED}, "problem", "no MIG instance exists", "`nvidia-smi mig -i 0 -cgi PROFILE -C`"),
        (None, {"cards": A40.replace("45400", "9000"), "apps": f"{A40.split(', ')[1]}, 77, 35000, /bin/trainer"},
         "warning", "other processes use 38.9 of the NVIDIA A40's 48.3 GB (trainer 77 uses 36.7 GB)", "stop the other"),
        (None, {"cards": A40.replace("46068, 45400", "[N/A], [N/A]")}, "warning", "does not report the memory of the NVIDIA A40,",
         "compare the card's memory with the total of `microrl plan`"),
    ],
    ids=["two cards", "which of two", "none of them", "none of two", "one is too old", "no slice", "no slice of the one named",
         "others", "no memory told"],
)  # fmt: skip
def test_what_is_said_of_cards(on, found, monkeypatch, visible, answers, status, says, do):
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    on(**answers)
    ((told, text),) = found()
    assert told == status and says in text and do in text


@pytest.mark.parametrize(
    ("card", "model", "engine", "says", "do"),
    [
        (T4, "Qwen2.5-7B-Instruct", "auto", "takes 15.2 GB of weights and 15.2 GB for vLLM's copy, but the Tesla T4 has 16.1 GB",
         "--engine transformers"),
        (T4, "Qwen2.5-7B-Instruct", "transformers", None, None),
        (A40.replace("45400", "9000"), "Qwen2.5-7B-Instruct", "auto", "but only 9.4 of the NVIDIA A40's 48.3 GB are free",
         "stop the other processes on this GPU (`nvidia-smi` lists them)"),
        (A40.replace("45400", "20000"), "Qwen2.5-7B-Instruct", "auto", "but only 21.0 of",
         "lists them), or use --engine transformers, which needs no copy"),
        (P100.replace("6.0", "7.5"), "Qwen2.5-7B-Instruct", "vllm", "or --engine", "smaller model"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_not_downloaded(on, found, monkeypatch, card, model, engine, says, do):
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    on(cards=card)
    problems = [text for status, text in found(model__name=model, engine__kind=engine) if status == "problem"]
    assert (not problems) if says is None else (says in problems[0] and do in problems[0])


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(
    ("engine", "vllm", "status"),
    [("default", True, "problem"), ("auto", True, "warning"), ("vllm", True, "problem"), ("transformers", True, None),
     ("auto", False, None)],
)  # fmt: skip
def test_a_compiler_is_needed_where_vllm_runs(on, found, monkeypatch, tmp_path, engine, vllm, status):
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    on(vllm=vllm)
    (tmp_path / "bin" / "gcc").unlink()
    monkeypatch.setenv("PATH", pretend.without_compilers(tmp_path / "few", os.environ["PATH"]))
    flags = {} if engine == "default" else {"engine__kind": engine}
    assert [told for told, _ in found(**flags)] == ([status] if status else [])


@pytest.mark.parametrize(("cuda", "least"), [("13.0", (7, 5)), ("12.8", (5, 0)), (None, None), ("14.1", None)])
def test_the_oldest_card_of_a_cuda_version(cuda, least):
    assert driver.lowest_capability(cuda) == least


def test_a_newer_library_than_the_driver_serves(on, found, monkeypatch):
    """NVIDIA's compatibility package: the driver's version says nothing then."""
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    on(driver="550.54.14")
    assert "too old" in found()[0][1]
    monkeypatch.setattr(driver, "_cuda_of_library", lambda: 13)
    assert found() == []
    monkeypatch.setattr(driver, "_cuda_of_library", lambda: 12)
    assert "too old" in found()[0][1]


# ---- the disk


def test_a_disk_that_is_too_small_is_refused_with_the_sizes(on, found, monkeypatch):
    """At rank 256 a checkpoint of this model has 295 M x 12 bytes = 3.54 GB, the adapter 1.18 GB, the download 3.09 GB."""
    on()
    free = {}
    monkeypatch.setattr(room, "free_bytes", lambda place: free["bytes"])
    work = Workload.from_config(resolve((), {"adapter.rank": 256, "budget.steps": 10}), shape_of("Qwen2.5-1.5B-Instruct"),
                                devices.DEVICES["a40"])  # fmt: skip
    assert work.trained == 295_436_288 and work.weight_bytes == pytest.approx(3.09e9, rel=0.01)
    least, most = room.run_bytes(work)
    rollouts = 2 * 10 * work.rows * 3584 / 2
    assert least == 28 * work.trained and most == pytest.approx(56 * work.trained + rollouts)
    for size, status in ((least + work.weight_bytes - 1, "problem"), (least + work.weight_bytes, "warning"),
                         (most + work.weight_bytes, None)):  # fmt: skip
        free["bytes"] = size
        told = found(adapter__rank=256)
        assert [one for one, _ in told] == ([status] if status else [])
    free["bytes"] = 5e9
    ((_, text),) = found(adapter__rank=256, runs=3)
    assert (
        text.startswith("the disk of ") and " has 5.0 GB free; the runs need up to 3.1 GB for the model's download and " in text
    )
    assert " for checkpoints, adapters and rollouts of 3 runs; free some space, or use another disk" in text


def test_what_a_run_has_written_is_not_asked_for_again(on, found, monkeypatch, tmp_path):
    on()
    monkeypatch.setattr(room, "free_bytes", lambda place: 9e9)
    assert [status for status, _ in found(adapter__rank=256)] == ["problem"]
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / "checkpoint", "wb") as file:
        file.truncate(4 * 10**9)
    assert [status for status, _ in found(adapter__rank=256)] == ["warning"]


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="only root may mount")
def test_a_full_disk(on, found, tmp_path):
    on()
    (tmp_path / "run").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path / "run"], capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        ((status, text),) = found()
    finally:
        subprocess.run(["umount", tmp_path / "run"], check=True)
    assert status == "problem" and text.startswith(f"the disk of {tmp_path}/run has 1.0 MB free; the run needs")


def test_a_download_within_the_budget_is_said(on, found, monkeypatch):
    on()
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    ((status, text),) = found(budget__hours=6, budget__steps=None)
    assert status == "warning" and text == (
        "Qwen2.5-1.5B-Instruct (3.1 GB) is not downloaded yet, and the download would count against --hours; download it first: "
        "`microrl plan --model Qwen2.5-1.5B-Instruct --fetch`"
    )
    ((_, text),) = found(budget__hours=6, budget__steps=None, data__name="gsm8k")
    assert text.endswith("`microrl plan --model Qwen2.5-1.5B-Instruct --data gsm8k --fetch`")
    ((_, text),) = found(budget__hours=6, budget__steps=None, distill__teacher="Qwen2.5-7B-Instruct")
    assert text.startswith("Qwen2.5-1.5B-Instruct (3.1 GB) and Qwen2.5-7B-Instruct (15.2 GB) are not downloaded yet")
    assert text.endswith("them first: `microrl plan --model Qwen2.5-1.5B-Instruct --teacher Qwen2.5-7B-Instruct --fetch`")


def test_a_teacher_that_does_not_fit_is_named(on, found, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda place: 1e12)
    on(cards=P100.replace("6.0", "8.0"))
    (problem,) = [text for status, text in found(distill__teacher="Qwen2.5-7B-Instruct") if status == "problem"]
    assert "and 15.2 GB for the teacher" in problem and "--set distill.quant=nf4" in problem


def test_what_is_no_disk_is_not_full():
    assert room.free_bytes(Path("/proc/nowhere")) > 1e15 and 0 < room.free_bytes(Path("/tmp")) < 1e15


def test_a_model_that_is_there_is_not_downloaded(monkeypatch, tmp_path, model_folder):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert room.hub.is_to_be_downloaded("Qwen2.5-1.5B-Instruct")
    snapshot = tmp_path / "models--Qwen--Qwen2.5-1.5B-Instruct" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert room.hub.is_to_be_downloaded("Qwen2.5-1.5B-Instruct"), "not its weights"
    (snapshot / "model.safetensors").touch()
    assert not room.hub.is_to_be_downloaded("Qwen2.5-1.5B-Instruct")
    assert not room.hub.is_to_be_downloaded(str(model_folder)) and not room.hub.is_to_be_downloaded("quickstart")
