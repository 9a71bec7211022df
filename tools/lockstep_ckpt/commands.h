// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

// A subcommand, and the function that runs it and returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// `show FILE [--json]`: lists the entries of a checkpoint without reading tensor data.
Command add_show_command(CLI::App& app);
// `diff A B [--rtol X] [--atol X]`: compares two checkpoints of any formats; exit code 1 if they differ.
Command add_diff_command(CLI::App& app);
// `convert IN OUT [--key KEY] [--copy-shared]`: converts between PyTorch's format, safetensors, and the
// folders of torch.distributed.checkpoint, by extension. PyTorch: `torch_save_to_dcp`, `dcp_to_torch_save`.
Command add_convert_command(CLI::App& app);
// `verify FILES...`: checks that checkpoints are intact.
Command add_verify_command(CLI::App& app);
// `strip-prefix FILE OUT [--prefix module.] [--key KEY]`: applies PyTorch's
// consume_prefix_in_state_dict_if_present() to a file.
Command add_strip_prefix_command(CLI::App& app);
// `merge A B... OUT [--key KEY]`: writes the union of flat dicts of tensors. A name in two of them is an
// error unless the tensors are equal.
Command add_merge_command(CLI::App& app);

}  // namespace lockstep::ckpt
