# SPDX-License-Identifier: BSD-3-Clause
"""What check_signatures.py compares: PyTorch's name, our name or names (`a|b`: the nearest overload counts), and our names of
arguments where they are other ones."""

# Our name of an argument wherever it has another one.
GROUP = {"group": "process_group", "model": "module"}

# Modules whose public names are compared with ours; names that PyTorch exports there by accident, or that belong elsewhere.
LISTS = [
    ("torch.distributed", ["AllToAllOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions", "BroadcastOptions",
                           "GatherOptions", "ReduceOptions", "ReduceScatterOptions", "ScatterOptions", "breakpoint", "rendezvous"]),
    ("torch.distributed.tensor.parallel", []),
    ("torch.distributed.pipelining", []),
    ("torch.utils.data", []),
    ("torch.optim", ["functional", "lr_scheduler", "swa_utils"]),
    ("torch.optim.lr_scheduler", []),
    ("torch.optim.swa_utils", []),
    ("torchvision.datasets", ["VisionDataset", "wrap_dataset_for_transforms_v2"]),
]

PAIRS = []


def compared(module, names, where="", renamed=None, prefix=""):
    """Adds names of `module`: "name" or "name=our name", in our namespace `where`."""
    for name in names.split():
        python, _, own = name.partition("=")
        own = "|".join(where + part for part in (own or python).split("|"))
        PAIRS.append((f"{module}.{python}", own, renamed or {}))


compared("torch.distributed", """init_process_group destroy_process_group new_group split_group
    get_rank get_world_size get_backend get_process_group_ranks is_initialized is_available
    is_backend_available is_nccl_available is_gloo_available is_mpi_available new_subgroups new_subgroups_by_enumeration""")
compared("torch.distributed", """all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier send recv isend irecv
    all_gather_object gather_object broadcast_object_list scatter_object_list""")
compared("torch.distributed", "batch_isend_irecv P2POp")
compared("torch.distributed.nn.functional", """all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_to_all
    all_to_all_single""", "nn::functional::")
compared("torch.distributed.device_mesh", "init_device_mesh DeviceMesh")
compared("torch.distributed.fsdp", "fully_shard MixedPrecisionPolicy CPUOffloadPolicy")
compared("torch.distributed.tensor.parallel", """parallelize_module ColwiseParallel RowwiseParallel SequenceParallel
    PrepareModuleInput loss_parallel""", "tensor_parallel::", {"device_mesh": "mesh", "parallelize_plan": "plan"})
compared("torch.distributed.pipelining", """PipelineStage ScheduleGPipe=PipelineScheduleSingle Schedule1F1B=PipelineScheduleSingle
    ScheduleInterleaved1F1B=PipelineScheduleMulti ScheduleLoopedBFS=PipelineScheduleMulti
    ScheduleInterleavedZeroBubble=PipelineScheduleMulti ScheduleZBVZeroBubble=PipelineScheduleMulti
    ScheduleDualPipeV=PipelineScheduleMulti""", "pipelining::")
compared("torch.distributed.checkpoint", "save load", "distributed_checkpoint::", {"checkpoint_id": "folder", "state_dict": "contents"})
compared("torch.distributed.checkpoint.state_dict", """get_model_state_dict set_model_state_dict get_optimizer_state_dict
    set_optimizer_state_dict StateDictOptions""", renamed={"optimizers": "optimizer"})
compared("torch.distributed.optim", "ZeroRedundancyOptimizer")
compared("torch.distributed.algorithms", "Join")
compared("torch.nn.parallel", "DistributedDataParallel DataParallel")
compared("torch.nn.utils", "clip_grad_norm_ clip_grad_value_", renamed={"parameters": "module"})
compared("torch.amp", "GradScaler autocast=Autocast", "amp::", {"device_type": "device"})
compared("torch.multiprocessing", "spawn")
compared("torch", "save load", renamed={"f": "file", "obj": "value"})
compared("torch.utils.data", """DataLoader Subset ConcatDataset TensorDataset random_split SequentialSampler
    RandomSampler SubsetRandomSampler WeightedRandomSampler BatchSampler""", "data::", {"data_source": "dataset"})
compared("torch.utils.data.distributed", "DistributedSampler", "data::")
compared("torch.optim", """NAdam=OptimizerOf<NAdamOptions> RAdam=OptimizerOf<RAdamOptions> Adamax=OptimizerOf<AdamaxOptions>
    Adadelta=OptimizerOf<AdadeltaOptions> ASGD=OptimizerOf<ASGDOptions> Rprop=OptimizerOf<RpropOptions>
    SparseAdam=OptimizerOf<SparseAdamOptions> Adafactor=OptimizerOf<AdafactorOptions> Muon=OptimizerOf<MuonOptions>""", "optim::")
compared("torch.optim.lr_scheduler", """LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR
    CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR OneCycleLR SequentialLR ChainedScheduler ReduceLROnPlateau""", "optim::")
compared("torch.optim.swa_utils", "AveragedModel SWALR update_bn get_ema_avg_fn get_ema_multi_avg_fn", "optim::")
compared("torchvision.datasets", "MNIST FashionMNIST KMNIST CIFAR10 CIFAR100 ImageFolder DatasetFolder", "data::")
compared("torchvision.transforms.v2", """Compose ToDtype Normalize Resize CenterCrop RandomCrop RandomResizedCrop RandomHorizontalFlip
    RandomVerticalFlip Pad Grayscale RandomGrayscale ColorJitter GaussianBlur RandomErasing RandomRotation RandomAffine RandomApply
    RandomChoice AutoAugment RandAugment TrivialAugmentWide MixUp CutMix""", "transforms::")
