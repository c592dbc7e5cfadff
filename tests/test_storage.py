"""Files that are there whole or not at all, and what is left of processes that were killed."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ponn.errors import PonnError
from ponn.storage import PrivateFolder, make_private_folder, remove_leftovers, replacing, write_whole


def rights(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(b"old")

    def fill_the_disk():
        with replacing(path) as file:
            file.write(b"half of the new")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fill_the_disk()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_when_the_last_bytes_go_out_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "policy.ponn"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "dup", lambda _: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["policy.ponn"]


def test_rights_of_new_replaced_and_private_files(tmp_path):
    old_mask = os.umask(0o022)
    try:
        new, kept, private = (tmp_path / name for name in ("new", "kept", "private"))
        write_whole(new, b"1")
        kept.write_bytes(b"0")
        kept.chmod(0o640)
        write_whole(kept, b"1")
        private.write_bytes(b"0")
        private.chmod(0o644)
        write_whole(private, b"1", private=True)
    finally:
        os.umask(old_mask)
    assert [rights(path) for path in (new, kept, private)] == [0o644, 0o640, 0o600]


def test_a_private_file_is_closed_to_others_from_its_first_byte(tmp_path):
    with replacing(tmp_path / "cases.csv", private=True) as file:
        file.write(b"name")
        assert [rights(path) for path in tmp_path.iterdir()] == [0o600]


def test_links_are_replaced_and_not_followed(tmp_path):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.write_bytes(b"of somebody else")
    link.symlink_to(elsewhere)
    write_whole(link, b"ours")
    assert elsewhere.read_bytes() == b"of somebody else"
    assert link.read_bytes() == b"ours"
    assert not link.is_symlink()


def test_what_is_no_file_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PonnError, match="is a device, pipe or socket; expected the name of a file"):
        write_whole(pipe, b"")
    with pytest.raises(PonnError, match="is a folder"):
        write_whole(tmp_path, b"")


WRITER = """
import os, sys
from pathlib import Path
from ponn.storage import PrivateFolder, replacing
os.getpid = lambda: 7  # as in two containers
with PrivateFolder() as folder, replacing(Path(sys.argv[1])) as file:
    (folder / "rows.csv").write_text("a case")
    for _ in range(int(sys.argv[2])):
        file.write(sys.argv[3].encode())
        file.flush()
    print(folder, flush=True)
    sys.stdin.read()
"""


def writer(path, times, letter, folder):
    command = [sys.executable, "-c", WRITER, str(path), str(times), letter]
    environment = os.environ | {"TMPDIR": str(folder)}
    found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    return found, Path(found.stdout.readline().strip())


def test_processes_of_equal_number_do_not_mix_what_they_write(tmp_path):
    path = tmp_path / "policy.ponn"
    processes = [writer(path, 1000, letter, tmp_path)[0] for letter in "ab"]
    for process in processes:
        process.communicate()
        assert path.read_bytes() in (b"a" * 1000, b"b" * 1000)
    assert os.listdir(tmp_path) == ["policy.ponn"]


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path, monkeypatch):
    killed, killed_folder = writer(tmp_path / "out.csv", 1, "a", tmp_path)
    living, living_folder = writer(tmp_path / "out.csv", 1, "b", tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (tmp_path / "ponn-demo-1").mkdir()  # holds no lock: not ours
    assert (killed_folder / "rows.csv").exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_leftovers.cache_clear()
    with PrivateFolder() as folder:
        assert rights(folder) == 0o700
        left = {path.name for path in tmp_path.iterdir()}
        assert killed_folder.name not in left
        assert {folder.name, living_folder.name, "ponn-demo-1"} < left
        assert len(left) == 4  # and the unfinished file of the living one
    living.communicate()
    assert living.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", "ponn-demo-1"}
    assert (tmp_path / "out.csv").read_text() == "b"


def test_a_private_folder_of_before_is_closed(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o755)
    make_private_folder(folder)
    make_private_folder(tmp_path / "files")
    assert [rights(folder), rights(tmp_path / "files")] == [0o700, 0o700]
