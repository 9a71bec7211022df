// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

namespace lockstep::launch {

/// Which of a rank's two output streams are meant. PyTorch: torch.distributed.elastic.multiprocessing.Std.
enum class Streams { none = 0, out = 1, err = 2, all = 3 };

/// A choice of streams for every rank of this node, or one for each local rank that is named.
struct StreamChoice {
  Streams every_rank = Streams::none;
  std::map<int, Streams> of_rank{};  ///< by local rank; a rank that is not named here has `every_rank`

  bool has_out(int local_rank) const;
  bool has_err(int local_rank) const;
  bool any() const;
};

/// "0" (none), "1" (stdout), "2" (stderr), "3" (both), or by local rank, as in "0:3,1:2". `option` is named
/// in the ArgumentError for anything else. PyTorch: Std.from_str.
StreamChoice parse_streams(const std::string& text, const std::string& option);

}  // namespace lockstep::launch
