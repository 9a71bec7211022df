# SPDX-License-Identifier: BSD-3-Clause
"""The test programs of each layer: those that a change of the layer should break."""

PROGRAMS = {
    "base": "test_base test_launch unit_communication unit_serialize unit_checkpoint unit_spawn multiprocess_rendezvous multiprocess_mistakes",
    "machine": "test_machine test_doctor tools_machine",
    "launch": "test_launch test_launcher faults_elastic",
    "doctor": "test_doctor tools_machine",
    "observe": "test_observe tools_observe",
    "serialize": "unit_serialize parity_serialize unit_checkpoint tools_ckpt",
    "optim": "unit_optim unit_checkpoint parity_optim parity_schedulers parity_checkpoint",
    "device": "unit_device unit_caching_cpu_allocator unit_pytree unit_data_device unit_model_parallel multiprocess_offload",
    "graphs": "unit_graphs",
    "intercept": "unit_nn unit_fsdp multiprocess_fsdp multiprocess_tensor_parallel",
    "state": "unit_checkpoint parity_checkpoint parity_models",
    "node": "unit_communication multiprocess_comm",
    "comm": "unit_communication multiprocess_comm multiprocess_arguments multiprocess_c10d multiprocess_reconfigure",
    "backends": "unit_communication unit_shm multiprocess_comm multiprocess_reconfigure",
    "runtime": "unit_rendezvous unit_communication multiprocess_comm multiprocess_spawn parity_sharding",
    "rendezvous": "unit_rendezvous multiprocess_rendezvous multiprocess_reconfigure multiprocess_survivors",
    "spawn": "unit_spawn multiprocess_spawn",
    "amp": "unit_amp parity_amp multiprocess_amp",
    "modules": "unit_ddp unit_fsdp multiprocess_ddp multiprocess_fsdp parity_sharding",
    "trace": "unit_ddp multiprocess_ddp multiprocess_fsdp multiprocess_training",
    "nn": "unit_nn unit_model_parallel parity_parallel parity_sharding multiprocess_ddp multiprocess_expert_parallel multiprocess_offload",
    "ddp": "unit_ddp parity_ddp multiprocess_ddp multiprocess_survivors",
    "fsdp": "unit_fsdp parity_sharding multiprocess_fsdp multiprocess_offload",
    "tensor_parallel": "parity_parallel multiprocess_tensor_parallel",
    "context_parallel": "parity_parallel multiprocess_context_parallel",
    "pipelining": "unit_pipelining parity_parallel parity_pipelining_schedules multiprocess_pipelining",
    "transforms": "unit_transforms parity_kit",
    "data": "unit_data unit_data_device parity_data parity_images",
    "metrics": "parity_kit",
    "models": "parity_models multiprocess_models",
    "checkpoint": "unit_checkpoint parity_checkpoint multiprocess_checkpoint tools_ckpt",
    "training": "unit_training parity_kit multiprocess_training",
}


def not_run(build):
    """The folders of src/ that the tests of this build cannot reach."""
    has_mpi = "LOCKSTEP_HAS_MPI:INTERNAL=ON" in (build / "CMakeCache.txt").read_text()
    without_mpi = () if has_mpi else ("src/communication/backends/mpi/",)
    return ("src/communication/backends/nccl/", *without_mpi)  # nccl needs a GPU


def programs_of(layer):
    return PROGRAMS[layer].split()
