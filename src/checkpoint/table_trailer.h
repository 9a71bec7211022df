// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

// What the file `.metadata` has behind the pickle that Python reads.
namespace lockstep::distributed_checkpoint {

/// An attribute of the Metadata, which Python keeps and does not look at: a trailer belongs to it.
inline constexpr const char* kHasTrailer = "lockstep_trailer";

struct TableParts {
  std::string_view pickle;
  std::string_view structure;
};

/// The file: both parts, and a trailer that says how long the structure is, with the checksum of all before.
std::string with_trailer(const TableParts& parts);

/// Tables that Python wrote are a pickle and nothing else; what is behind one is no part of it. Throws
/// CheckpointError where the checksum is another one.
TableParts without_trailer(std::string_view text);

}  // namespace lockstep::distributed_checkpoint
