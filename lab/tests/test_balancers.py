"""What every balancer's file relies on: knowing when a process listens, and files that change as a whole."""

import os
import socket
import sys
import tempfile
import unittest
from pathlib import Path

from lab import network
from lab.balancers import replace_file
from lab.child import Child


class ListensTest(unittest.TestCase):
    def test_listener_is_seen_until_it_is_closed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self.assertTrue(network.listens([os.getpid()], port))
        self.assertFalse(network.listens([os.getpid()], port))

    def test_another_process_at_the_port_does_not_count(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
            code = "print(flush=True); input()"
            with Child([sys.executable, "-c", code], Path(folder) / "log", piped=True) as child:
                child.stdout.readline()
                self.assertFalse(network.listens(child.processes(), server.getsockname()[1]))

    def test_connection_is_no_listener(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            self.assertFalse(network.listens([os.getpid()], client.getsockname()[1]))


class ReplaceFileTest(unittest.TestCase):
    def test_reader_of_the_old_file_keeps_it_whole(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "endpoints.yaml"
            replace_file(path, "old")
            with path.open() as reader:
                replace_file(path, "new")
                self.assertEqual((reader.read(), path.read_text()), ("old", "new"))
            self.assertEqual(os.listdir(folder), ["endpoints.yaml"])
