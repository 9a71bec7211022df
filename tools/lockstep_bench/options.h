// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report.h"

namespace lockstep::bench {

// "1K:64M" (doubling), "1K:64M:4" (times four) or a list "1K,64K,25M", also of ranges. Bytes; K, M and G are
// powers of 1024. Throws ArgumentError quoting what it cannot read.
std::vector<std::size_t> parse_sizes(const std::string& text);

// The validated command line.
struct Options {
  std::vector<std::string> collectives = {};
  std::vector<std::size_t> sizes = {};  // bytes
  int iterations = 0;                   // timed calls per row; 0: by size
  int warmup = 3;                       // untimed calls before them
  bool bind = true;
  bool check = true;
  Format format = Format::table;

  // `lockstep bench` only.
  std::vector<std::string> backends = {"shm", "gloo"};
  std::vector<std::string> memories = {"ordinary", "zero-copy"};
  bool memory_given = false;  // whether --memory is on the command line
  std::vector<std::string> dtypes = {"float32"};
  std::string op = "sum";
  bool nodes = false;     // all-reduce between hosts, beside the cost model
  bool progress = false;  // report each measurement on stderr
};

enum class Tool { lockstep_bench, mpi_collectives };

// Thrown for --help.
struct HelpWanted {
  std::string text;
};

// Parses `arguments` (without argv[0]). Throws HelpWanted or ArgumentError.
Options parse_options(Tool tool, std::vector<std::string> arguments);

}  // namespace lockstep::bench
