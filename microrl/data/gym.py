"""Procedural tasks: `--data reasoning-gym:chain_sum,gcd` generates problems of these tasks, by seed and index."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import microrl
from microrl import plain
from microrl.config.data import GYM, DataConfig
from microrl.data.alike import FEWEST
from microrl.errors import UserError, did_you_mean

NAMES = (
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "arc_agi", "base_conversion", "basic_arithmetic", "bf",
    "binary_alternation", "binary_matrix", "bitwise_arithmetic", "boxnet", "caesar_cipher", "calendar_arithmetic", "chain_sum",
    "circuit_logic", "codeio", "coin_flip", "color_cube_rotation", "complex_arithmetic", "composite", "count_bits",
    "count_primes", "countdown", "course_schedule", "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice",
    "emoji_mystery", "family_relationships", "figlet_font", "fraction_simplification", "futoshiki", "game_of_life",
    "game_of_life_halting", "gcd", "graph_color", "group_anagrams", "gsm_symbolic", "intermediate_integration",
    "isomorphic_strings", "jugs", "kakurasu", "knight_swap", "knights_knaves", "largest_island", "lcm", "leg_counting",
    "letter_counting", "letter_jumble", "list_functions", "mahjong_puzzle", "manipulate_matrix", "maze", "mini_sudoku",
    "modulo_grid", "n_queens", "needle_haystack", "number_filtering", "number_format", "number_sequence", "number_sorting",
    "palindrome_generation", "palindrome_partitioning", "path_star", "polynomial_equations", "polynomial_multiplication",
    "pool_matrix", "power_function", "prime_factorization", "products", "propositional_logic", "puzzle24", "quantum_lock",
    "ransom_note", "rearc", "rectangle_count", "rotate_matrix", "rotten_oranges", "rubiks_cube", "rush_hour", "self_reference",
    "sentence_reordering", "shortest_path", "simple_equations", "simple_geometry", "simple_integration", "sokoban",
    "spell_backward", "spiral_matrix", "string_insertion", "string_manipulation", "string_splitting", "string_synthesis",
    "sudoku", "survo", "syllogism", "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder", "word_sequence_reversal",
    "word_sorting", "zebra_puzzles",
)  # fmt: skip
"""The tasks of reasoning-gym 0.1.25."""
UNSOUND = {
    "boxnet": "its problems have no gold answer, so its scorer cannot be checked",
    "coin_flip": "its scorer takes '0' for right, whatever the probability",
    "complex_arithmetic": "its scorer takes 'nan' for right",
    "composite": "it is a mixture of others, which have to be configured",
    "game_of_life_halting": "its scorer takes any text for right",
    "graph_color": "its problems have no gold answer, so its scorer cannot be checked",
    "intermediate_integration": "some of its own answers are integrals that have not been worked out",
    "propositional_logic": "its problems have no gold answer, so its scorer cannot be checked",
    "rubiks_cube": "its problems have no gold answer, so its scorer cannot be checked",
    "rush_hour": "its problems have no gold answer, so its scorer cannot be checked",
}
"""Tasks of that version that are refused before anything is generated. The others are probed before a run, too."""
PATIENCE_S = 900.0
"""For generating all problems. Most tasks need less than a millisecond a problem, a few almost a second."""


def tasks(name: str) -> list[str]:
    """The tasks that a data set's name lists. Raises UserError for one that does not exist, or where the library is missing."""
    names = [task.strip() for task in name[len(GYM) :].split(",")]
    if not all(names):
        raise UserError(f"`{name[:80]}` lacks the name of a task", f"list tasks as in {GYM}chain_sum,gcd")
    for task in names:
        if task not in NAMES:
            usable = [known for known in NAMES if known not in UNSOUND]
            raise UserError(f"reasoning-gym has no task `{task[:80]}`", did_you_mean(task[:80], usable, shown=20))
        if task in UNSOUND:
            raise _refused(task, UNSOUND[task])
    if repeated := next((task for task in names if names.count(task) > 1), None):
        raise UserError(f"`{repeated}` is listed twice", "list each task once; data.problems is the number of problems of each")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("procedural tasks need reasoning-gym", "in your clone of microrl: pip install -e '.[gym]'")
    return names


def problems(config: DataConfig) -> Iterator[tuple[str, str, str, str]]:
    """Question, answer, a name by which it is split, and its cluster. Raises UserError for a task that cannot be generated, or
    is not the same again for the same seed.

    The problems of a task are independent draws of its generator, but of many tasks each is taken for a sample of others.
    """
    if config.cluster not in (None, "task", "question"):
        raise UserError(f"procedural tasks have no `{config.cluster[:80]}`", "--set data.cluster=task, or question")
    wanted = tasks(config.name)
    by_task = config.cluster == "task" or (config.cluster is None and len(wanted) >= FEWEST)
    for row in _generated(wanted, config):
        if "error" in row:
            raise _refused(row["task"], row["error"])
        gold = {name: row[name] for name in ("task", "index", "entry", "has_answer")} | {"seed": config.seed}
        name = f"{row['task']} {row['index']}"
        yield row["question"], json.dumps(gold), name, row["task"] if by_task else name


def solution(gold: str) -> str:
    """The task's own answer as a completion, without any working; empty where it has none. `gold`: as in `problems`."""
    problem = json.loads(gold)
    return f"<answer>{_answer(problem)}</answer>" if problem["has_answer"] else ""


def own_answer(gold: str) -> str:
    """The answer to show for a question's gold answer: of a procedural task, the one in what its scorer needs."""
    try:
        return _answer(json.loads(gold)) if gold.startswith('{"task": ') else gold
    except (ValueError, KeyError, TypeError):
        return gold


def _answer(problem: dict[str, Any]) -> str:
    return str(plain.decode(problem["entry"])["answer"])


def _generated(wanted: list[str], config: DataConfig) -> list[dict[str, Any]]:
    """What `microrl.data.gym_rows` prints. Raises UserError where it takes too long or dies."""
    asked = {"tasks": wanted, "count": config.problems, "seed": config.seed}
    folders = [str(Path(microrl.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "microrl.data.gym_rows", json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(folders)},
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"generating the problems takes more than {PATIENCE_S:g} s", "fewer of them: --set data.problems=100"
        ) from None
    if done.returncode != 0:
        raise UserError("reasoning-gym ended while it generated the problems", "try fewer tasks, to find the one at fault")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _refused(task: str, why: str) -> UserError:
    return UserError(f"task `{task}` of reasoning-gym cannot be used: {why}", "leave it out of --data")
