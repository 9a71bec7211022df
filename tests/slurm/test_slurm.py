# SPDX-License-Identifier: BSD-3-Clause
"""Programs under SLURM: test_slurm.py <slurm_rank> <lockstep> [unittest argument...]"""

import pathlib
import re
import sys
import unittest

from cluster import Cluster, wait_until

RANK, LOCKSTEP = sys.argv[1:3]
cluster = None


def setUpModule():
    global cluster
    cluster = unittest.enterModuleContext(Cluster())


def told(text):
    """(rank, world size, local rank, local world size, sum) of each line that slurm_rank wrote, in order."""
    pattern = r"rank (\d+) of (\d+), local (\d+) of (\d+): the sum is (\d+)"
    return sorted(tuple(map(int, found)) for found in re.findall(pattern, text))


ALONE = [(0, 1, 0, 1, 1)]
TWO_HERE = [(0, 2, 0, 2, 3), (1, 2, 1, 2, 3)]
TWO_ON_EACH_NODE = [(0, 4, 0, 2, 10), (1, 4, 1, 2, 10), (2, 4, 0, 2, 10), (3, 4, 1, 2, 10)]
TWO_AND_ONE = [(0, 3, 0, 2, 6), (1, 3, 1, 2, 6), (2, 3, 0, 1, 6)]


class SlurmTest(unittest.TestCase):
    def run_well(self, *command, text=None):
        client = cluster.run(*command, text=text)
        self.assertEqual(client.returncode, 0, f"{command}\n{client.out}\n{client.err}\n{cluster.logs()}")
        return client.out

    def run_script(self, script, *options):
        """The stdout of a script that sbatch runs."""
        output = cluster.folder / "batch.out"
        errors = cluster.folder / "batch.err"
        options = ("--wait", f"--output={output}", f"--error={errors}", *options)
        client = cluster.run("sbatch", *options, text=f"#!/bin/sh\nset -e\n{script}\n")
        self.assertEqual(client.returncode, 0, f"{client.err}\n{errors.read_text()}\n{cluster.logs()}")
        return output.read_text()


class Srun(SlurmTest):
    def test_needs_no_launcher_and_no_flag(self):
        self.assertEqual(told(self.run_well("srun", "--ntasks=2", RANK)), TWO_HERE)

    def test_two_nodes(self):
        out = self.run_well("srun", "--nodes=2", "--ntasks=4", RANK)
        self.assertEqual(told(out), TWO_ON_EACH_NODE)

    def test_nodes_with_different_numbers_of_tasks(self):
        out = self.run_well("srun", "--nodes=2", "--ntasks=3", RANK)
        self.assertEqual(told(out), TWO_AND_ONE)

    def test_fine_tuning_program(self):
        program = str(pathlib.Path(RANK).with_name("image_folder_finetune"))
        pictures = str(cluster.folder / "pictures")
        out = self.run_well("srun", "--nodes=2", "--ntasks=2", program, "--folder", pictures, "--size", "32", "--epochs", "1")
        self.assertIn("step 5: accuracy 0.", out)  # 144 pictures, 16 per rank

    def test_steps_of_one_job_at_the_same_time(self):
        step = f"srun --overlap --nodes=2 --ntasks=2 {RANK}"
        out = self.run_well("salloc", "--nodes=2", "sh", "-c", f"{step} & {step} && wait $!")
        self.assertEqual(len(told(out)), 4)
        self.assertEqual({line[1] for line in told(out)}, {2})


class SrunMpi(SlurmTest):
    """Built with Open MPI, which finds its ranks by PMIx."""

    def test_one_node(self):
        self.assertEqual(told(self.run_well("srun", "--mpi=pmix", "--ntasks=2", RANK, "mpi")), TWO_HERE)


class Allocation(SlurmTest):
    def test_script_with_srun(self):
        out = self.run_script(f"srun {RANK}", "--nodes=2", "--ntasks=4")
        self.assertEqual(told(out), TWO_ON_EACH_NODE)

    def test_script_with_the_launcher(self):
        out = self.run_script(f"{LOCKSTEP} run --nproc-per-node 2 {RANK}", "--nodes=2", "--ntasks=3")
        self.assertEqual(told(out), TWO_HERE)

    def test_script_with_the_program_alone(self):
        self.assertEqual(told(self.run_script(RANK, "--nodes=2", "--ntasks=3")), ALONE)

    def test_shell_that_is_no_step(self):
        launch = f"{RANK} && {LOCKSTEP} run --nproc-per-node 2 {RANK}"
        out = self.run_well("salloc", "--nodes=2", "--ntasks=3", "sh", "-c", launch)
        self.assertEqual(told(out), ALONE + TWO_HERE)

    def test_shell_that_is_a_step(self):
        commands = f"set -e\necho step $SLURM_STEP_ID\n{RANK}\n{LOCKSTEP} run --nproc-per-node 2 {RANK}\nexit\n"
        out = self.run_well("salloc", "--nodes=2", "--ntasks=3", text=commands)
        self.assertIn("step 4294967290", out)
        self.assertEqual(told(out), ALONE + TWO_HERE)


class LauncherAsATask(SlurmTest):
    def launch(self, *srun, program=RANK):
        return ("srun", *srun, LOCKSTEP, "run", "--nproc-per-node", "2", program)

    def test_one_node(self):
        out = self.run_well("salloc", "--nodes=1", *self.launch("--ntasks-per-node=1"))
        self.assertEqual(told(out), TWO_HERE)

    def test_two_nodes(self):
        out = self.run_well("salloc", "--nodes=2", *self.launch("--ntasks-per-node=1"))
        self.assertEqual(told(out), TWO_ON_EACH_NODE)

    def test_two_on_one_node_are_refused(self):
        client = cluster.run(*self.launch("--nodes=1", "--ntasks=2"))
        self.assertNotEqual(client.returncode, 0)
        self.assertEqual(told(client.out), [])
        self.assertIn("--ntasks-per-node=1", client.err)


class Ends(SlurmTest):
    """However a job ends, no process is left and the nodes are free."""

    def test_a_rank_dies(self):
        client = cluster.run("srun", "--nodes=2", "--ntasks=4", RANK, "lose-rank-1")
        self.assertNotEqual(client.returncode, 0)
        self.assertRegex(client.err, r"slurm_rank: rank 0 .* another rank is gone: rank 1 ")
        cluster.wait_until_nothing_is_left()

    def test_a_rank_of_a_launcher_dies(self):
        client = cluster.run("srun", "--ntasks=1", LOCKSTEP, "run", "--nproc-per-node", "2", RANK, "lose-rank-1")
        self.assertEqual(client.returncode, 137)
        self.assertIn("rank 1 failed first", client.err)
        cluster.wait_until_nothing_is_left()

    def test_a_rank_of_launchers_on_two_nodes_dies(self):
        launch = (LOCKSTEP, "run", "--nproc-per-node", "2", RANK, "lose-rank-1")
        client = cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", *launch)
        self.assertNotEqual(client.returncode, 0)
        self.assertIn("rank 1 failed first", client.err)
        cluster.wait_until_nothing_is_left()

    def cancel_when_ranks_wait(self, ranks, *command):
        with cluster.start(*command) as client:
            lines = [client.stdout.readline() for _ in range(ranks)]
            self.assertEqual(len(told("".join(lines))), ranks, client.poll())
            self.run_well("scancel", "--name=cancelled")
            client.communicate()
        self.assertNotEqual(client.returncode, 0)
        cluster.wait_until_nothing_is_left()

    def test_scancel(self):
        self.cancel_when_ranks_wait(4, "srun", "--job-name=cancelled", "--nodes=2", "--ntasks=4", RANK, "wait")

    def test_scancel_of_a_launcher(self):
        launch = (LOCKSTEP, "run", "--nproc-per-node", "2", RANK, "wait")
        self.cancel_when_ranks_wait(2, "srun", "--job-name=cancelled", "--ntasks=1", *launch)

    def test_scancel_of_launchers_on_two_nodes(self):
        launch = (LOCKSTEP, "run", "--nproc-per-node", "2", RANK, "wait")
        srun = ("srun", "--job-name=cancelled", "--nodes=2", "--ntasks-per-node=1")
        self.cancel_when_ranks_wait(4, *srun, *launch)


class Requeue(SlurmTest):
    """A signal reaches a job, which saves a checkpoint, goes back into the queue, and ends as one without a signal."""

    REQUEUE = 'if [ $code -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi\nexit $code\n'

    def script(self, launch, folder):
        return f"{launch} {RANK.replace('slurm_rank', 'training_rank')} preempted loop 60 {folder}"

    def new_folder(self, name):
        folder = cluster.folder / name
        folder.mkdir()
        return folder

    def trained(self, text):
        return sorted(re.findall(r"trained (\d+: \w+)", text))

    def undisturbed(self):
        folder = self.new_folder("undisturbed")
        (folder / "enough").touch()
        weights = self.trained(self.run_well("srun", "--nodes=2", "--ntasks=4", *self.script("", folder).split()))
        self.assertEqual(len(weights), 4)
        return weights

    def train_with_a_signal(self, name, script, *scancel):
        folder = self.new_folder(name)
        output = folder / "out"
        options = ("--parsable", "--requeue", "--open-mode=append", f"--output={output}", "--nodes=2")
        text = f"#!/bin/bash\n{script(folder)}\n{self.REQUEUE}"
        job = cluster.run("sbatch", *options, text=text).out.strip()

        def told(pattern, times):
            return output.exists() and len(re.findall(pattern, output.read_text())) >= times

        try:
            wait_until("the ranks train", lambda: told(r"pid \d+ of \d at step 0", 4))
            self.run_well("scancel", *scancel, job)
            wait_until("the ranks have saved a checkpoint", lambda: told(r"saved \d: step \d+", 4))
            state = ("squeue", "--noheader", f"--job={job}", "--format=%T")
            wait_until("the job waits again", lambda: cluster.run(*state).out.strip() == "PENDING")
            # A node refuses a job that starts in the second in which the node has ended it.
            nodes = ("sinfo", "--noheader", "--format=%T")
            wait_until("the nodes have ended the job", lambda: cluster.run(*nodes).out.split() == ["idle"])
            (folder / "enough").touch()
            self.run_well("scontrol", "update", f"JobId={job}", "StartTime=now+2")
            wait_until("the job has ended", lambda: told(r"trained \d: \w+", 4))
        except TimeoutError as error:
            self.fail(f"{error}\n{output.read_text() if output.exists() else ''}\n{cluster.logs()}")
        cluster.wait_until_nothing_is_left()
        steps = set(re.findall(r"saved \d: step (\d+)", output.read_text()))
        self.assertEqual(len(steps), 1)
        self.assertTrue(told(rf"at step {steps.pop()}\n", 4))
        return self.trained(output.read_text())

    def test_tasks_and_launchers_get_the_signal(self):
        weights = self.undisturbed()
        for name, launch in (("tasks", "srun --ntasks=4"),
                             ("launchers", f"srun --ntasks-per-node=1 {LOCKSTEP} run --nproc-per-node 2")):
            with self.subTest(name):
                script = lambda folder: f"{self.script(launch, folder)}\ncode=$?"
                self.assertEqual(self.train_with_a_signal(name, script, "--signal=USR1"), weights)

    def test_script_gets_the_signal(self):
        def script(folder):
            launch = self.script(f"{LOCKSTEP} run --nproc-per-node 4", folder)
            return (f"trap 'kill -USR1 $launcher; interrupted=yes' USR1\n{launch} &\nlauncher=$!\nwait $launcher\n"
                    'code=$?\nif [ "$interrupted" ]; then wait $launcher; code=$?; fi')

        weights = self.train_with_a_signal("script", script, "--batch", "--signal=USR1")
        folder = self.new_folder("no-signal")
        (folder / "enough").touch()
        self.assertEqual(weights, self.trained(self.run_script(self.script(
            f"{LOCKSTEP} run --nproc-per-node 4", folder), "--nodes=2")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
