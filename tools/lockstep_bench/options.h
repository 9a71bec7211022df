// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::bench {

enum class Format { table, csv, json };

struct Options {
  std::vector<std::string> collectives = {};
  std::vector<std::string> backends = {"shm", "gloo"};
  std::vector<std::string> memories = {"ordinary", "inplace"};
  std::vector<std::size_t> sizes = {};  ///< bytes
  std::vector<c10::ScalarType> dtypes = {c10::ScalarType::Float};
  std::string op = "sum";
  int iterations = 0;  ///< 0: chosen by the size
  bool bind = true;
  bool check = true;
  Format format = Format::table;
};

/// "1K:64M" (doubling), "1K:64M:4" (times four) or "1K,64K,25M"; K, M and G are powers of 1024.
/// Throws ArgumentError quoting what it cannot read.
std::vector<std::size_t> parse_sizes(const std::string& text);

/// "float32", "bf16", ... Throws ArgumentError for others.
c10::ScalarType parse_dtype(const std::string& name);
std::string name_of(c10::ScalarType dtype);

/// Reads the command line. Throws CLI::ParseError (help included) or ArgumentError.
Options parse_options(int argc, char** argv);

}  // namespace lockstep::bench
