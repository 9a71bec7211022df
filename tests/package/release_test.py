# SPDX-License-Identifier: BSD-3-Clause
"""The parts of scripts/release.sh that need no build: release_test.py <source>"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1]).resolve()
sys.path[:0] = [str(SOURCE / "scripts/release"), str(SOURCE / "python")]
import deb  # noqa: E402
import pack_wheel  # noqa: E402
import sbom  # noqa: E402
import third_party  # noqa: E402
import version as versions  # noqa: E402

EPOCH = 1_700_000_000


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


class Versions(Folder):
    """In a copy of the project's own files, as version 1.2.3."""

    def setUp(self):
        super().setUp()
        for name in (versions.HEADER, versions.CHANGELOG, versions.CITATION, *versions.REQUESTS, *versions.STATUS, *versions.UNRELEASED):
            self.write(name, (SOURCE / name).read_text())
        changelog = self.folder / versions.CHANGELOG
        changelog.write_text(changelog.read_text().replace("## ", "## 9.9.9 (unreleased)\n\n- A line.\n\n## ", 1))
        versions.set_version(self.folder, "1.2.3", "2030-01-02")

    def problems(self, version="1.2.3", rehearse=False):
        return versions.problems(self.folder, version, rehearse)

    def test_of_this_tree(self):
        self.assertEqual(versions.problems(SOURCE, versions.stated_version((SOURCE / versions.HEADER).read_text()), True), [])

    def test_set(self):
        self.assertEqual(self.problems(), [])
        self.assertEqual(versions.notes((self.folder / versions.CHANGELOG).read_text(), "1.2.3"), "- A line.\n")
        self.assertIn("version: 1.2.3\ndate-released: 2030-01-02\n", (self.folder / versions.CITATION).read_text())
        changelog = self.folder / versions.CHANGELOG
        with self.assertRaisesRegex(ValueError, "has no section for 1.3.0"):
            versions.set_version(self.folder, "1.3.0", "2031-01-02")
        changelog.write_text(changelog.read_text().replace("## ", "## 1.3.0 (unreleased)\n\n- Another.\n\n## ", 1))
        versions.set_version(self.folder, "1.3.0", "2031-01-02")
        self.assertEqual(self.problems("1.3.0"), [])
        self.assertIn("Version 1.3.0.", (self.folder / "README.md").read_text())
        self.assertEqual((self.folder / versions.CITATION).read_text().count("date-released"), 1)

    def test_other_version(self):
        self.assertEqual(len(self.problems("1.2.4")), 5)  # header, changelog, citation, two READMEs
        self.assertGreater(len(self.problems("1.3.0")), 5)

    def test_each_file(self):
        for name, words, other in ((versions.HEADER, "_PATCH 3", "_PATCH 4"), (versions.CITATION, "version: 1.2.3", "version: 1.2"),
                                   (versions.CHANGELOG, "## 1.2.3 (2030-01-02)", "## 1.2.3 (unreleased)"),
                                   (versions.REQUESTS[0], "Lockstep 1.2 ", "Lockstep 1.1 "),
                                   ("README.md", "Version 1.2.3.", "Version 1.2.3 is not released."),
                                   ("README.md", "Version 1.2.3.", "Version 1.2.2."), ("SECURITY.md", "gets corrections.",
                                    "gets corrections. Nothing is released so far, so they go to the main branch.")):
            path = self.folder / name
            text = path.read_text()
            self.assertIn(words, text)
            path.write_text(text.replace(words, other))
            found = self.problems()
            self.assertEqual(len(found), 1, found)
            self.assertIn(name, found[0])
            path.write_text(text)

    def test_rehearsal(self):
        path = self.folder / versions.CHANGELOG
        path.write_text(path.read_text().replace("(2030-01-02)", "(unreleased)"))
        self.assertEqual(self.problems(rehearse=True), [])

    def test_notes(self):
        text = "# Changelog\n\n## 1.2.3 (2030-01-02)\n\n### Added\n- a\n\n## 1.2.2 (2030-01-01)\n- b\n"
        self.assertEqual(versions.notes(text, "1.2.3"), "### Added\n- a\n")
        self.assertEqual(versions.notes(text, "1.2.2"), "- b\n")
        for version in ("1.2", "1.2.4"):
            with self.assertRaisesRegex(ValueError, version):
                versions.notes(text, version)


class Script(Folder):
    """scripts/release.sh in a copy, with a git that says what the test wants."""

    def run_script(self, changes, *words, git=0):
        shutil.copytree(SOURCE / "scripts", self.folder / "scripts", dirs_exist_ok=True)
        for name in (versions.HEADER, versions.CHANGELOG, versions.CITATION, *versions.REQUESTS, *versions.STATUS, *versions.UNRELEASED):
            self.write(name, (SOURCE / name).read_text())
        self.write("programs/git", f"#!/bin/sh\nprintf '{changes}'\nexit {git}\n", 0o755)
        result = subprocess.run(["bash", self.folder / "scripts/release.sh", *words], text=True, capture_output=True,
                                env=dict(os.environ, PATH=f"{self.folder}/programs:{os.environ['PATH']}"))
        self.assertNotEqual(result.returncode, 0)
        return result.stderr

    def test_refusals(self):
        self.assertIn("this tree has changes", self.run_script(" M README.md", "0.1.0"))
        self.assertIn("git cannot say", self.run_script("", "0.1.0", git=128))
        self.assertIn("--tree needs a folder", self.run_script("", "0.1.0", "--tree"))
        self.assertIn("is no build tree", self.run_script("", "0.1.0", "--tree", "/nowhere"))
        self.assertIn("--output needs a folder", self.run_script("", "0.1.0", "--output"))
        self.assertIn("--python needs a folder", self.run_script("", "0.1.0", "--python"))
        self.assertIn("--python: /nowhere has no Python.h", self.run_script("", "0.1.0", "--python", "/nowhere"))
        self.assertIn("must be three numbers", self.run_script("", "v0.1"))
        text = self.run_script("", "77.0.0")
        self.assertIn("this tree is not 77.0.0:\n  include/lockstep/version.h", text)
        self.assertIn("scripts/release/version.py set 77.0.0", text)
        (self.folder / "build/release-0.1.0").mkdir(parents=True)
        self.assertIn("exists: remove it", self.run_script("", "0.1.0"))


class Wheels(Folder):
    def test_pythons(self):
        for number in (315, 311, 39):
            self.write(f"lockstep_torch/_C.cpython-{number}-x86_64-linux-gnu.so", "")
        self.assertEqual(pack_wheel.pythons(self.folder), ["cp39", "cp311", "cp315"])
        self.assertEqual(pack_wheel.tag_in_name(self.folder), "cp39.cp311.cp315-cp39.cp311.cp315-linux_x86_64")
        tags = pack_wheel.tags(self.folder)
        self.assertEqual((len(tags), tags[0], tags[5]), (9, "cp39-cp39-linux_x86_64", "cp311-cp315-linux_x86_64"))


    def test_headers_of_pythons(self):
        self.write("headers/patchlevel.h", '#define PY_MAJOR_VERSION 3\n#define PY_VERSION              "3.13.5"\n')
        self.write("CMakeCache.txt", f"LOCKSTEP_PYTHON_HEADERS:STRING={self.folder}/headers\n")
        [python] = third_party.headers_of_pythons(self.folder)
        self.assertEqual((python.name, python.version, python.licence), ("python3.13", "3.13.5", "PSF-2.0"))
        self.assertEqual(sbom.component(python)["purl"], "pkg:generic/python@3.13.5")
        self.write("CMakeCache.txt", "LOCKSTEP_PYTHON_HEADERS:STRING=\n")
        self.assertEqual(third_party.headers_of_pythons(self.folder), [])


class Bill(Folder):
    LIBRARIES = [third_party.Library("zlib", "1:1.2.13-1", "linked", ("zlib1g",)),
                 third_party.Library("curl", "7.88-1", "loaded when it is needed", ("libcurl4-openssl-dev",)),
                 third_party.Library("torch", "2.15.0", "linked")]

    def test_contents(self):
        file = self.write("a.deb", "abc")
        text = sbom.bill("1.2.3", "f" * 40, EPOCH, [file], self.LIBRARIES)
        self.assertEqual(text, sbom.bill("1.2.3", "f" * 40, EPOCH, [file], self.LIBRARIES))
        bill = json.loads(text)
        self.assertEqual((bill["bomFormat"], bill["specVersion"], bill["metadata"]["timestamp"]),
                         ("CycloneDX", "1.5", "2023-11-14T22:13:20Z"))
        zlib, curl, torch, artifact = bill["components"]
        self.assertEqual((zlib["licenses"], zlib["scope"]), ([{"expression": "Zlib"}], "required"))
        self.assertEqual((curl["scope"], torch["purl"]), ("optional", "pkg:pypi/torch@2.15.0"))
        self.assertEqual(artifact["hashes"][0]["content"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        refs = [entry["bom-ref"] for entry in bill["components"]]
        self.assertEqual(len(refs), len(set(refs)))
        self.assertEqual(bill["dependencies"][0]["dependsOn"], refs[:3])

    def test_unknown_licence(self):
        with self.assertRaisesRegex(SystemExit, "no licence is known for leftpad"):
            sbom.bill("1.2.3", "f" * 40, EPOCH, [], [third_party.Library("leftpad", "1", "linked", ("leftpad",))])

    def test_source_packages_with_a_version_in_their_name(self):
        self.assertEqual(third_party.licence_of("python3.11"), "PSF-2.0")
        self.assertIn("GCC-exception", third_party.licence_of("gcc-14"))

    def test_headers(self):
        text = ("src/foundation/base/CMakeFiles/lockstep_base.dir/a.o: #deps 2, deps mtime 1 (VALID)\n    /usr/include/zlib.h\n    a.h\n\n"
                "tests/unit/CMakeFiles/unit.dir/b.o: #deps 1, deps mtime 1 (VALID)\n    /usr/include/gtest/gtest.h\n\n"
                "src/x/CMakeFiles/lockstep_mpi.dir/c.o: #deps 1, deps mtime 1 (VALID)\n    /usr/include/mpi.h\n\n")
        self.assertEqual(third_party.headers_of(text), {"/usr/include/zlib.h", "a.h"})


class Packages(Folder):
    def pack(self, folder):
        package = self.folder / folder / "package"
        (package / "usr/bin").mkdir(parents=True)
        (package / "usr/bin/tool").write_text("#!/bin/sh\n")
        (package / "usr/bin/tool").chmod(0o750)
        text = deb.control("lockstep-torch2.15", "2.15.0", "1.2.3", "libc6 (>= 2.36)", 7, ("one line", "Another."), provides="lockstep")
        return deb.pack(package, self.folder / folder, EPOCH, text)

    def test_bytes(self):
        first, second = self.pack("first"), self.pack("second/deeper")
        self.assertEqual(first.name, "lockstep-torch2.15_1.2.3+torch2.15.0_amd64.deb")
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_contents(self):
        package = self.pack("first")
        fields = subprocess.run(["dpkg-deb", "--field", package], check=True, text=True, stdout=subprocess.PIPE).stdout
        self.assertIn("Depends: libc6 (>= 2.36)\n", fields)
        self.assertIn("Provides: lockstep\n", fields)
        files = subprocess.run(["dpkg-deb", "--contents", package], check=True, text=True, stdout=subprocess.PIPE).stdout
        self.assertRegex(files, r"-rwxr-xr-x root/root .* ./usr/bin/tool\n")

    def start(self, **environment):
        """The script that finds LibTorch, in front of a program that prints where it looks for libraries."""
        self.write("programs/lockstep-bench", "#!/bin/sh\necho $LD_LIBRARY_PATH $@\n", 0o755)
        script = self.write("bin/lockstep-bench", deb.starter("2.15.0", str(self.folder / "programs")), 0o755)
        clean = {name: text for name, text in os.environ.items() if name not in ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "LOCKSTEP_TORCH_PREFIX")}
        result = subprocess.run([script, "a b"], text=True, capture_output=True, env=clean | environment)
        return result.returncode, result.stdout + result.stderr

    def make_torch(self, version):
        path = self.write(f"torch-{version}/share/cmake/Torch/TorchConfigVersion.cmake", f'set(PACKAGE_VERSION "{version}+cpu")\n')
        return str(path.parents[3])

    def test_libtorch(self):
        prefix = self.make_torch("2.15.0")
        self.assertEqual(self.start(LOCKSTEP_TORCH_PREFIX=prefix), (0, f"{prefix}/lib a b\n"))
        other = self.make_torch("2.14.1")
        code, text = self.start(LOCKSTEP_TORCH_PREFIX=other)
        self.assertEqual((code, text.count("\n")), (1, 1))
        self.assertIn(f"lockstep-bench: this program was built for LibTorch 2.15.0, but {other} has LibTorch 2.14.1", text)

    def test_torch_of_the_active_python(self):
        prefix = self.make_torch("2.15.0")
        self.write("venv/bin/python3", f"#!/bin/sh\necho {prefix}\n", 0o755)
        self.assertEqual(self.start(VIRTUAL_ENV=str(self.folder / "venv")), (0, f"{prefix}/lib a b\n"))
        self.write("venv/bin/python3", "#!/bin/sh\n", 0o755)
        code, text = self.start(VIRTUAL_ENV=str(self.folder / "venv"))
        self.assertEqual((code, text.count("\n")), (1, 1))
        self.assertIn("found no LibTorch", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
