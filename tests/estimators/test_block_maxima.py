from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.sampling.block_maxima import Request, sample
from cleverscore.inputs.balls import LpBall
from cleverscore.models.margin_gradients import margin_gradient_norms


def network() -> cs.Classifier:
    torch.manual_seed(0)
    return cs.Classifier(nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 3)))


def request(blocks: range, *, input_id: int = 0, block_size: int = 10) -> Request:
    return Request(torch.zeros(5), input_id, 0, (1, 2), LpBall(2.0, 1.0), blocks, block_size, 0)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("blocks", [1, 3])
def test_every_request_is_answered_once(workers: int, blocks: int) -> None:
    requests = [request(range(blocks), input_id=i) for i in range(60)]
    answers = list(sample(network(), requests, chunk_size=10, workers=workers))
    assert sorted(position for position, _ in answers) == list(range(60))


def test_maxima_are_those_of_the_simplest_loop() -> None:
    classifier, wanted = network(), request(range(4, 9), block_size=300)
    ((_, found),) = sample(classifier, [wanted], chunk_size=64, workers=2)
    for column, block in enumerate(range(4, 9)):
        # 300 points of dimension 5 are one whole tile of 256 and 44 of the next.
        tiles = [
            wanted.ball.points(wanted.x, count=count, seed=0, input_id=0, block=block, tile=tile)
            for tile, count in enumerate((256, 44))
        ]
        norms = [
            margin_gradient_norms(classifier, point[None], predicted=0, targets=(1, 2), q=2.0)[0]
            for point in torch.cat(tiles)
        ]
        assert found.values[:, column] == pytest.approx(torch.stack(norms).amax(0).numpy(), rel=1e-5)


def test_blocks_can_be_continued() -> None:
    classifier = network()
    ((_, whole),) = sample(classifier, [request(range(7))], chunk_size=32, workers=2)
    ((_, first),) = sample(classifier, [request(range(3))], chunk_size=32, workers=2)
    ((_, second),) = sample(classifier, [request(range(3, 7))], chunk_size=32, workers=2)
    assert (first.blocks, second.first) == (3, 3)
    assert np.concatenate([first.values, second.values], 1) == pytest.approx(whole.values, rel=1e-6)


def test_an_error_in_a_thread_reaches_the_caller_and_threads_are_restored() -> None:
    before = torch.get_num_threads()
    broken = cs.Classifier(lambda x: x.detach())
    with pytest.raises(cs.CleverError, match="cut off"):
        list(sample(broken, [request(range(50))], chunk_size=4, workers=2))
    assert torch.get_num_threads() == before


def test_progress_hears_of_every_point() -> None:
    heard: list[int] = []
    list(sample(network(), [request(range(6))] * 3, chunk_size=16, workers=2, on_points=heard.append))
    assert sum(heard) == 3 * 6 * 10


def test_nan_wins_every_maximum() -> None:
    def measure(
        classifier: cs.Classifier, points: torch.Tensor, *, targets: tuple[int, ...], **_: object
    ) -> torch.Tensor:
        norms = torch.ones(len(points), len(targets))
        norms[0, 0] = torch.nan  # of each chunk's first point
        return norms

    ((_, found),) = sample(network(), [request(range(2))], chunk_size=4, workers=2, measure=measure)
    assert np.isnan(found.values[0]).all() and (found.values[1] == 1.0).all()
