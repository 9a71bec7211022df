// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "commands.h"

// The subcommands that write a checkpoint.
namespace lockstep::ckpt {

// `convert IN OUT [--key KEY] [--copy-shared]`: converts between PyTorch's format, safetensors, and the
// folders of torch.distributed.checkpoint, by extension. PyTorch: `torch_save_to_dcp`, `dcp_to_torch_save`.
Command add_convert_command(CLI::App& app);
// `strip-prefix FILE OUT [--prefix module.] [--key KEY]`: applies PyTorch's
// consume_prefix_in_state_dict_if_present() to a file.
Command add_strip_prefix_command(CLI::App& app);
// `merge A B... OUT [--key KEY]`: writes the union of flat dicts of tensors. A name in two of them is an
// error unless the tensors are equal.
Command add_merge_command(CLI::App& app);

}  // namespace lockstep::ckpt
