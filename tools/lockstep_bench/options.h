// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report.h"

namespace lockstep::bench {

/// What every program here is told. The members are checked: names exist, numbers lie in range.
struct Options {
  std::vector<std::string> collectives = {};
  std::vector<std::size_t> sizes = {};  ///< bytes
  int iterations = 0;                   ///< timed calls a row; 0: chosen by the size
  int warmup = 3;                       ///< calls before them
  bool bind = true;
  bool check = true;
  Format format = Format::table;

  // Of `lockstep bench` only.
  std::vector<std::string> backends = {"shm", "gloo"};
  std::vector<std::string> memories = {"ordinary", "inplace"};
  bool memory_given = false;  ///< whether the user asked for just these
  std::vector<std::string> dtypes = {"float32"};
  std::string op = "sum";
  bool progress = false;  ///< whether to say on stderr what is being measured
};

enum class Tool { lockstep_bench, mpi_collectives };

/// Asked for by --help.
struct HelpWanted {
  std::string text;
};

/// Reads `arguments` (without argv[0]). Throws HelpWanted or ArgumentError.
Options parse_options(Tool tool, std::vector<std::string> arguments);

}  // namespace lockstep::bench
