"""EDL-089: a loss or a join stops all, all load the checkpoint, training goes on."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.edl_dist.generations import (
    Generations,
    Give,
    Kill,
    SaveAndStop,
    StartGeneration,
    StartProcess,
)


def group(**rules):
    machine = Generations(**{"wanted": 2, "standby": 1} | rules)
    started = machine.on_begin()
    instructions = []
    for number in range(len(started)):
        instructions += machine.on_ready(f"p{number}", 0.0)
    return machine, instructions


def test_it_starts_when_enough_are_ready_and_keeps_one_beside():
    machine, instructions = group()
    assert instructions == [StartGeneration(1, ("p0", "p1"))]
    assert machine.free == ["p2"]


def test_a_lost_rank_is_replaced_by_the_one_that_stands_by():
    machine, _ = group()
    machine.on_step(10)
    assert machine.on_lost("p1", 1.0) == [StartProcess()]  # the next one to stand by
    instructions = machine.on_ready("p0", 1.1)
    assert instructions == [StartGeneration(2, ("p0", "p2"))]


def test_the_master_may_be_lost_too():
    machine, _ = group()
    machine.on_lost("p0", 1.0)
    assert machine.on_ready("p1", 1.1) == [StartGeneration(2, ("p1", "p2"))]


def test_without_replacement_it_goes_on_with_fewer():
    machine, _ = group(replace=False, standby=0)
    assert machine.on_lost("p1", 1.0) == []
    assert machine.on_ready("p0", 1.1) == [StartGeneration(2, ("p0",))]


def test_the_others_may_notice_a_loss_first():
    machine, _ = group(replace=False, standby=0)
    assert machine.on_broken("p0", 1.0) == []
    assert machine.on_ready("p0", 1.0) == []
    assert machine.on_lost("p1", 1.1) == [StartGeneration(2, ("p0",))]
    assert machine.losses == 1


def test_a_rank_that_does_not_let_go_is_killed():
    machine, _ = group(let_go_s=5.0)
    machine.on_lost("p1", 1.0)
    assert machine.on_tick(5.9) == []
    assert machine.on_tick(6.1) == [Kill("p0")]
    machine.on_lost("p0", 6.2)
    machine.on_ready("p3", 9.0)
    assert machine.state == "training"
    assert machine.ranks == ("p2", "p3")


def test_a_join_waits_for_the_newcomer_and_then_saves_first():
    machine, _ = group(standby=0)
    assert machine.on_wanted(3) == [StartProcess()]
    assert machine.on_ready("p2", 5.0) == [SaveAndStop(1)]
    machine.on_saved(6.0)
    assert machine.on_ready("p0", 6.1) == []
    assert machine.on_ready("p1", 6.2) == [StartGeneration(2, ("p0", "p1", "p2"))]


def test_a_smaller_group_saves_first_too():
    machine, _ = group(wanted=3, standby=0)
    assert machine.on_wanted(2) == [SaveAndStop(1)]
    machine.on_saved(1.0)
    for name in ("p0", "p1"):
        assert machine.on_ready(name, 1.1) == []
    assert machine.on_ready("p2", 1.2) == [StartGeneration(2, ("p0", "p1"))]


def test_generations_without_progress_end_in_an_error():
    machine, instructions = group(standby=0)
    for round_number in range(20):
        if any(isinstance(i, Give) for i in instructions):
            break
        machine.on_lost("p1", float(round_number))
        machine.on_ready("p0", float(round_number))
        instructions = machine.on_ready("p1", float(round_number))
    assert machine.state == "failed"
    assert "ended before one step" in instructions[0].failed


def test_losses_that_come_after_some_steps_are_bad_luck_for_long():
    machine, instructions = group(standby=0)
    for number in range(25):
        machine.on_step(number % 3)  # rolled back each time
        machine.on_lost("p1", float(number))
        machine.on_ready("p0", float(number))
        instructions = machine.on_ready("p1", float(number))
        assert instructions == [StartGeneration(number + 2, ("p0", "p1"))]
    for number in range(25, 40):
        machine.on_step(1)
        machine.on_lost("p1", float(number))
        machine.on_ready("p0", float(number))
        if machine.state != "failed":
            instructions = machine.on_ready("p1", float(number))
    assert "came no further than step 2" in instructions[0].failed


def test_an_error_of_its_own_is_not_tried_again():
    machine, _ = group()
    assert machine.on_error("boom") == [Give(failed="boom")]
    assert machine.on_lost("p0", 1.0) == []


def test_who_is_killed_for_not_letting_go_is_no_loss():
    """The defect B7: four ranks, one dies, three are stuck; wanted went from 4 to 1."""
    machine, _ = group(wanted=4, replace=False, standby=0, let_go_s=5.0)
    machine.on_lost("p3", 1.0)
    assert machine.wanted == 3
    killed = [i.rank for i in machine.on_tick(6.1)]
    assert killed == ["p0", "p1", "p2"]
    instructions = [i for name in killed for i in machine.on_lost(name, 6.2)]
    assert machine.wanted == 3
    assert instructions == [StartProcess()] * 3  # others in their place
    for name in ("p4", "p5"):
        assert machine.on_ready(name, 9.0) == []
    assert machine.on_ready("p6", 9.0) == [StartGeneration(2, ("p4", "p5", "p6"))]
    assert machine.losses == 1


def test_a_second_machine_that_dies_meanwhile_is_a_loss():
    machine, _ = group(wanted=4, replace=False, standby=0, let_go_s=5.0)
    machine.on_lost("p3", 1.0)
    machine.on_lost("p2", 1.5)  # nobody killed it
    assert machine.wanted == 2
    assert machine.losses == 2


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 2))
def test_any_losses_end_in_training_again(seed, replace, standby):
    """Random losses, joins and hangs; when they end, the group trains with what it wants."""
    chance = random.Random(seed)
    machine = Generations(wanted=3, replace=replace, standby=standby)
    alive, starting, instructions, names = set(), 0, machine.on_begin(), iter(range(10**6))
    died, killed, wanted = 0, set(), 3
    time, step, seen = 0.0, 0, []
    for move in range(400):
        time += 1.0
        while instructions:
            instruction, *instructions = instructions
            if isinstance(instruction, StartProcess):
                starting += 1
            elif isinstance(instruction, StartGeneration):
                seen.append(instruction)
                assert len(set(instruction.ranks)) == machine.wanted
                assert set(instruction.ranks) <= alive
            elif isinstance(instruction, Kill):
                alive.discard(instruction.rank)
                killed.add(instruction.rank)
                instructions = [*instructions, *machine.on_lost(instruction.rank, time)]
        if machine.state == "training":
            step += 1
            machine.on_step(step)
        calm = move > 200
        kinds = ["ready", "ready", "let_go"] + ([] if calm else ["lose", "want"])
        kind = chance.choice(kinds)
        if kind == "ready" and starting:
            starting -= 1
            name = f"p{next(names)}"
            alive.add(name)
            instructions = machine.on_ready(name, time)
        elif kind == "let_go" and machine.busy & alive:
            instructions = machine.on_ready(sorted(machine.busy & alive)[0], time)
        elif kind == "let_go" and machine.state == "saving":
            instructions = machine.on_saved(time)
        elif kind == "lose" and alive:
            name = chance.choice(sorted(alive))
            alive.discard(name)
            in_use = name in machine.ranks and machine.state in ("training", "saving")
            died += in_use or name in machine.busy
            instructions = machine.on_lost(name, time)
        elif kind == "want":
            asked = chance.randint(1, 4)
            wanted, died = asked, 0
            instructions = machine.on_wanted(asked)
        instructions = [*instructions, *machine.on_tick(time)]
    assert machine.state in ("training", "saving")
    # It shrinks by those that died, and not by those it killed itself.
    assert machine.wanted == (wanted if replace else max(1, wanted - died))
    assert [i.generation for i in seen] == list(range(1, len(seen) + 1))
