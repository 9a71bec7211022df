// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "commands.h"

namespace lockstep::cli {

// `lockstep recorder dump [RUN] [--out DIR]` and `lockstep recorder analyze [RUN|DIR] [--json]`: the last calls of the
// ranks of a run on this host, also of stopped and stuck ones. The exit code of analyze is 1 if a rank keeps others
// waiting.
Command recorder_command(CLI::App& app);

// `lockstep stacks [RUN]`: the stacks of all threads of the ranks of a run on this host, which stand still for a moment.
Command stacks_command(CLI::App& app);

// `lockstep top [RUN]`: the ranks of a run on this host, once or until it ends or the user leaves.
Command top_command(CLI::App& app);

}  // namespace lockstep::cli
