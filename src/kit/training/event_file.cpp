// SPDX-License-Identifier: BSD-3-Clause
#include "training/event_file.h"

#include <array>
#include <atomic>
#include <chrono>
#include <unistd.h>

#include <fmt/format.h>

#include "base/host.h"

namespace lockstep::training {
namespace {

// Fields of tensorflow.Event and SessionLog.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kSessionStatus = 1;
constexpr int kSessionStart = 1;

constexpr std::array<std::uint32_t, 256> crc32c_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0x82F63B78U : 0);
    table[byte] = value;
  }
  return table;
}

// As TensorBoard's own, so that the names of a folder sort by time.
std::filesystem::path new_name(const std::filesystem::path& folder, const std::string& suffix) {
  static std::atomic<int> number{0};
  return folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}{}",
                              static_cast<std::int64_t>(wall_time_now()), host_name(), ::getpid(), number++,
                              suffix);
}

}  // namespace

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr auto table = crc32c_table();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

EventFile::EventFile(const std::filesystem::path& folder, const std::string& suffix)
    : file_(new_name(folder, suffix), 0) {
  add(ProtoMessage().float64(kWallTime, wall_time_now()).text(kFileVersion, "brain.Event:2"));
}

void EventFile::add_summary(const ProtoMessage& summary, std::optional<std::int64_t> step,
                            std::optional<double> wall_time) {
  add(ProtoMessage()
          .float64(kWallTime, wall_time ? *wall_time : wall_time_now())
          .integer(kStep, step.value_or(0))
          .message(kSummary, summary));
}

void EventFile::add_session_start(std::int64_t step) {
  add(ProtoMessage()
          .float64(kWallTime, wall_time_now())
          .integer(kStep, step)
          .message(kSessionLog, ProtoMessage().integer(kSessionStatus, kSessionStart)));
}

void EventFile::add(const ProtoMessage& event) {
  const auto& bytes = event.bytes();
  const std::uint64_t length = bytes.size();
  std::string record(little_endian(length));
  record += little_endian(masked_crc32c(record));
  record += bytes;
  record += little_endian(masked_crc32c(bytes));
  file_.append(record);
}

}  // namespace lockstep::training
