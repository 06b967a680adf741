"""Training loads of a release: valid arguments, and all protocols on both sides."""

import inspect
import unittest

from lab.balancers import BalancerTask
from lab.load import LoadGenerator
from lab.training import TRAININGS


class TrainingTest(unittest.TestCase):
    def test_every_load_is_one_that_the_load_generator_knows(self) -> None:
        extent = {"warmup_seconds": 0.1, "seconds": 1.0}
        for training in TRAININGS:
            with self.subTest(training.name):
                BalancerTask(endpoints=(), **training.task)
                for options in training.loads:
                    inspect.signature(LoadGenerator.load).bind(None, "target", **extent, **options)
                for options in training.handshakes:
                    inspect.signature(LoadGenerator.handshakes).bind(
                        None, "target", host="host", ask=False, **extent, **options
                    )

    def test_every_protocol_has_a_load_in_front_and_behind(self) -> None:
        behind = {training.task.get("endpoint_protocol", "http1") for training in TRAININGS}
        self.assertEqual(behind, {"http1", "http2", "grpc"})
        loads = [options for training in TRAININGS for options in training.loads]
        in_front = {
            "http3" if options.get("http3") else "http2" if "streams" in options else "http1" for options in loads
        }
        self.assertEqual(in_front, {"http1", "http2", "http3"})


if __name__ == "__main__":
    unittest.main()
