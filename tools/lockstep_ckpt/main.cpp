// SPDX-License-Identifier: BSD-3-Clause
// `lockstep ckpt`: a separate program, because it links LibTorch and `lockstep` does not.
#include <algorithm>

#include "commands.h"
#include "program_main.h"
#include "write_commands.h"

int main(int argc, char** argv) {
  using namespace lockstep::ckpt;
  CLI::App app("Inspect, compare and convert checkpoints, without Python", "lockstep ckpt");
  return lockstep::run_program(app, [&] {
    app.require_subcommand(1);
    const Command commands[] = {add_show_command(app),         add_diff_command(app),
                                add_convert_command(app),      add_verify_command(app),
                                add_strip_prefix_command(app), add_merge_command(app)};
    app.parse(argc, argv);
    return std::ranges::find_if(commands, [](const Command& command) { return command.app->parsed(); })
        ->run();
  });
}
