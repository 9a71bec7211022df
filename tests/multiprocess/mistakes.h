// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <source_location>
#include <string>
#include <vector>

namespace lockstep::testing {

/// How a program with a mistake ends.
enum class Ending : std::uint8_t {
  fails,  ///< at least one rank fails
  well,   ///< all ranks exit with 0, after a warning
};

/// Whether a report names a line of the program.
enum class Place : std::uint8_t {
  source_line,  ///< the test's own file, with a line
  none,         ///< no line: LibTorch or the program itself threw, or std::make_shared() called Lockstep
};

/// What a user reads on stderr.
///
/// For every row, whatever it says here: each rank writes 15 lines at most, without a C++ stack, an enum's
/// number or, after init(), "terminate called", and names lines of no file but the test's own. A rank that fails
/// names itself, "rank 1" or "RANK=1".
struct Reported {
  std::vector<std::string> on_all = {};    ///< texts that every rank's stderr contains: cause and remedy
  std::vector<std::string> on_rank0 = {};  ///< also
  std::vector<std::string> on_rank1 = {};  ///< also
  std::vector<std::string> once = {};      ///< texts that occur once in the stderr of all ranks together
  std::string printed = {};                ///< a text that every rank's stdout contains
  Ending ending = Ending::fails;
  Place place = Place::source_line;  ///< in the stderr of each rank from which a text is expected
  /// As in RunOptions.
  int world_size = 2;
  std::map<std::string, std::string> env = {};
  std::map<int, std::map<std::string, std::string>> rank_env = {};
};

/// A mistake that programs make: one row of the suite Mistakes. `program` is main() of every rank; an
/// exception that leaves it is caught by nobody. Define one at namespace scope:
///
///     const Mistake other_shapes("AllReduceOfOtherShapes", {.on_all = {"2 x f32", "3 x f32", "same calls"}},
///                                [] {
///                                  const auto context = init();
///                                  context.group().all_reduce(torch::ones({2 + context.rank()}));
///                                });
class Mistake {
 public:
  Mistake(std::string name, Reported reported, std::function<void()> program,
          std::source_location where = std::source_location::current());
};

}  // namespace lockstep::testing
