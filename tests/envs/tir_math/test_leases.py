import gc
import os

import pytest

from arl_lightning.envs.tir_math.leases import Shared


class Door:
    def __init__(self, name: str) -> None:
        self.name, self.closed = name, 0

    def close(self) -> None:
        self.closed += 1


class Holder:
    """Anything that a weak reference can name."""


def test_holders_of_like_options_share_one_thing_until_the_last_lets_go() -> None:
    shared, first, second = Shared(Door), Holder(), Holder()
    one, two = shared.lease(first, "a"), shared.lease(second, "a")
    assert one.thing is two.thing
    one.release()
    one.release()
    assert (one.thing.closed, len(shared)) == (0, 1)
    two.release()
    assert (one.thing.closed, len(shared)) == (1, 0)
    assert shared.lease(first, "a").thing is not one.thing


def test_other_options_open_another_thing() -> None:
    shared, holder = Shared(Door), Holder()
    assert shared.lease(holder, "a").thing is not shared.lease(holder, "b").thing
    assert len(shared) == 2


def test_a_holder_that_is_collected_lets_go() -> None:
    shared, holder = Shared(Door), Holder()
    door = shared.lease(holder, "a").thing
    del holder
    gc.collect()
    assert door.closed == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_uses_nor_closes_its_parent_s_thing() -> None:
    shared, holder = Shared(Door), Holder()
    lease = shared.lease(holder, "a")
    child = os.fork()
    if child == 0:
        fresh = shared.lease(holder, "a").thing is not lease.thing
        lease.release()
        os._exit(0 if fresh and lease.thing.closed == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (len(shared), lease.thing.closed) == (1, 0)
