"""SECURITY.md, line by line: each has a number, each number the tests that hold it to its word, and those
tests are there.
"""

from __future__ import annotations

import ast
import re
import sys

import pytest
from places import ROOT, TESTS

sys.path.append(str(ROOT / "benchmarks"))  # last: its small_files is another than that of the tests
import attack

PAGE = (ROOT / "SECURITY.md").read_text()
LINES = {m[1]: m[0] for m in re.finditer(r"^\| ([BOTSEL]\d+) \|.*$", PAGE, re.MULTILINE)}


HELD_BY = """
B1
  test_trust.py: test_what_is_ours_is_read | test_what_kubernetes_mounts
  test_attack.py: test_the_attacker_is_another_user
B2
  test_config.py: test_precedence | test_an_explicit_file_is_read_wherever_it_lies
  test_plugins.py: test_without_plugins_the_example_is_not_there
B3
  cluster/test_agree.py: test_through_torch | test_what_our_ranks_load_is_what_we_have_found
  test_meeting.py: test_through_a_store_of_torch
O1
  test_orders.py: test_a_directory_of_decisions_that_everybody_may_write | test_a_decision_that_somebody_planted_in_a_sticky_directory |
    test_a_note_that_others_could_have_taken_away_is_not_missed
  attack: another user's decision in a 1777 plan-dir | another user's plan-dir | a plan-dir that all may write |
    the note of an earlier start removed | a link in place of a directory of decisions | a link in place of a lock |
    a link in place of the cache | another user's directory as --view | a --view in a directory that all may write
O2
  test_trust.py: test_a_second_name_in_a_sticky_directory
  test_orders.py: test_files_of_orders
  attack: CKPT_PLAN names another user's file | a FIFO as CKPT_PLAN | CKPT_PLAN leads through /proc/self/fd |
    a decision exchanged before it is opened | a ckpt.toml exchanged before it is opened | a hard link to an old decision of ours |
    another user's fault file | a FIFO as fault file | another user's key file | another user's file as --config |
    another user's file of replica groups
O3
  test_config.py: test_no_configuration_is_read_from_the_scanned_tree
  attack: another user's ckpt.toml above the working directory | a ckpt.toml that all may write | another user's link as ckpt.toml |
    a FIFO as ckpt.toml
O4
  test_trust.py: test_a_key_is_read_by_its_owner_alone | test_what_kubernetes_mounts
  attack: a key file that all may read
O5
  attack: a cache of another user's | a database of another user's in our cache | a cache that all may write
O6
  test_trust.py: test_a_group_of_many_and_a_group_of_one | test_another_owner |
    test_a_trusted_directory_vouches_for_what_lies_in_it_and_not_for_what_its_links_reach
  test_orders.py: test_trust_is_never_read_from_a_file | test_a_volume_of_a_pod
O7
  attack: a decision that sets LD_PRELOAD and PATH | a decision whose paths leave its ROOT
O8
  test_hostile_files.py: test_every_change_of_one_value | test_a_forged_cache_is_not_used
  test_fuzz.py: test_what_once_failed_does_not_fail_again
  attack: CKPT_PLAN with 100,000 brackets | CKPT_PLAN of 1 GiB | ckpt.toml with 100,000 brackets | CKPT_PLAN with {"decision":{}} |
    a cache with nonsense in every record
O9
  test_same_start.py: test_launchers_that_tell_their_starts_apart | test_srun_under_a_job_id_that_came_back |
    test_a_job_name_that_is_given_twice | test_what_a_decision_is_made_from | test_law
T1
  test_pickle.py: test_nothing_runs | test_nothing_is_imported | test_dangerous_names
  test_outside.py: test_what_unpickles_is_unsafe_wherever_it_is_no_call_that_is_followed |
    test_a_class_that_picklers_only_make_is_unsafe_where_it_is_called |
    test_what_no_list_has_is_suspect_where_it_is_given_to_what_calls_it
  attack: a call | a call through a module's import | a call in .metadata
T2
  test_trust_global.py: test_every_command_asks_and_none_goes_back | test_the_flag_lifts_no_error | test_each_of_them_warns
  attack: a call behind 6,000,000 steps | a call behind 6,000,000 steps, in .metadata | a second pickle behind the first
T3
  test_outside.py: test_code_of_torchscript_that_touches_files_is_unsafe |
    test_torchscript_is_never_ok_without_a_note_and_no_training_state | test_code_of_keras_in_hdf5_and_what_it_keeps_in_other_files_is_an_error |
    test_code_in_the_configuration_of_keras_is_unsafe |
    test_an_archive_that_leaves_its_directory_is_an_escape | test_pickles_in_an_archive_are_judged_whatever_they_are_called |
    test_members_of_npz_are_arrays_by_their_bytes
T4
  attack: FIFOs in a tree | files of a tree are links to /proc/self/environ | files of a tree are links to /dev/zero |
    a tracker names a directory elsewhere | an index names a file elsewhere
T5
  test_pickle.py: test_memory_is_bounded_by_the_stream
  attack: zip: 1 GiB of zeros | zip: 1,000,000 entries | zstd: 4 GiB of zeros | pickle: tuples of tuples, 2³⁰⁰ |
    pickle: 100,000 keys of one hash | pickle: lists 1,000,000 deep | JSON index nests 1,000,000 deep | 8,000 empty files
T6
  test_emit.py: test_tables_print_nothing_that_steers_a_terminal
  test_machine_formats.py: test_hostile_names | test_no_name_and_no_message_breaks_a_format
  attack: control characters | words of a shell | line breaks | names that begin with a dash
T7
  test_load.py: test_nothing_of_the_file_is_run | test_the_loader_cannot_write
S1
  test_secrets.py: test_nothing_secret_is_shown_or_left_where_the_store_answers | test_the_law_sees_it_where_one_of_these_is_missing |
    test_nothing_secret_is_shown_or_left_where_it_does_not | test_a_program_that_says_too_much_is_not_quoted
  test_urls.py: test_the_name_has_nothing_of_the_query
S2
  test_store_options.py: test_no_secret_is_taken_or_said
  test_urls.py: test_what_belongs_elsewhere_is_refused_and_not_quoted | test_two_objects_never_have_one_name
S3
  test_store_options.py: test_a_file_in_the_tree_that_is_scanned_gives_no_orders
  test_credentials.py: test_an_engine_is_told_no_secrets_and_no_options
E1
  test_working_directory.py: test_the_load_child_imports_nothing_from_the_working_directory |
    test_python_m_imports_nothing_from_where_it_was_started | test_pages_start_ckpt_where_nobody_can_plant_a_module |
    test_the_training_is_not_told_how_to_import
  test_plugins.py: test_where_packages_are_looked_for | test_without_plugins_the_example_is_not_there
  attack: modules in the working directory: ckpt, load level
L1
  attack: modules in the working directory: python -m | an empty place in PYTHONPATH
L2
  test_hook_install.py: test_slurm_a_file_replaced_after_the_decision_stops_the_task
L3
  test_pickle.py: test_names_that_need_trust
"""
"""Number of a line, and by file the tests that fail when it stops being true, or when what is called a limit is none
any more; ``attack`` are rows of benchmarks/attack.py, each of which is a test.
"""


def read_held() -> dict[str, list[str]]:
    """Number -> ``file::test``, or ``attack: name``."""
    held: dict[str, list[str]] = {}
    for number, rows in re.findall(r"^([A-Z]\d+)\n((?:  .*\n)+)", HELD_BY, re.MULTILINE):
        for file, names in re.findall(r"^  (\S+): ((?:.|\n    )+)", rows, re.MULTILINE):
            before = "attack: " if file == "attack" else f"{file}::"
            held.setdefault(number, []).extend(before + " ".join(n.split()) for n in names.split("|"))
    return held


HELD = read_held()


def functions(file: str) -> set[str]:
    (path,) = TESTS.rglob(file)
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_line_has_a_test_and_every_test_a_line() -> None:
    assert list(LINES) == list(HELD)
    assert len(re.findall(r"^\| [A-Z]\d+ \|", PAGE, re.MULTILINE)) == len(LINES), "a number is there twice"


@pytest.mark.share(2, "slow")
@pytest.mark.parametrize("number", HELD)
def test_the_tests_of_a_line_are_there(number: str) -> None:
    known = {a.name for a in attack.ATTACKS}
    assert HELD[number]
    for name in HELD[number]:
        file, _, function = name.partition("::")
        assert (function in functions(file)) if function else (name.removeprefix("attack: ") in known), name


def test_every_attack_holds_a_line() -> None:
    held = {name.removeprefix("attack: ") for names in HELD.values() for name in names}
    near = {
        "files of a tree are links to /proc/self/mem",
        "JSON state nests 1,000,000 deep",
        "modules in the working directory: python -P -m",
    }
    assert {a.name for a in attack.ATTACKS} - held == near


def test_limits_are_called_so() -> None:
    """What the table of attacks calls a limit is a line of that section, and nothing else is."""
    limits = {a.name for a in attack.ATTACKS if a.limit}
    assert limits == {name.removeprefix("attack: ") for number in ("L1",) for name in HELD[number]}


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 80


def test_flags_that_the_page_names_exist() -> None:
    from ckpt_tools.settings.resolve import ENV, WORDS

    known = {v.flag for v in ENV} | {words.flag for words in WORDS.values()}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known


def test_reports_go_to_the_forge() -> None:
    assert "private vulnerability reporting" in PAGE
    assert not re.search(r"[\w.]+@[\w.]+", PAGE)
