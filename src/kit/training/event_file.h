// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "training/append_file.h"
#include "training/protobuf.h"

namespace lockstep::training {

// Seconds since 1970.
double wall_time_now();

// A new event file of TensorBoard: records of TFRecord, each a protobuf Event.
class EventFile {
 public:
  // `suffix` ends its name.
  EventFile(const std::filesystem::path& folder, const std::string& suffix);

  void add_summary(const ProtoMessage& summary, std::optional<std::int64_t> step,
                   std::optional<double> wall_time);
  // TensorBoard drops what it has read of `step` and later ones.
  void add_session_start(std::int64_t step);
  void sync() { file_.sync(); }

 private:
  void add(const ProtoMessage& event);

  AppendFile file_;
};

// The checksum of TFRecord.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep::training
