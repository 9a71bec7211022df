// SPDX-License-Identifier: BSD-3-Clause
#include "data/index_file.h"

#include <chrono>
#include <fstream>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/atomic_file.h"
#include "serialize/storage.h"

namespace lockstep::data {
namespace {

// A folder or file that changed as recently may change again without a new modification time.
constexpr std::chrono::seconds kTimeGranularity{2};

std::uint32_t checksum(std::string_view text) { return serialize::crc32_of(std::as_bytes(std::span(text))); }

std::string contents_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const auto bytes = stream.tellg();
  if (!stream || bytes < 0) return {};
  std::string text(static_cast<std::size_t>(bytes), '\0');
  stream.seekg(0);
  stream.read(text.data(), bytes);
  return stream ? text : std::string();
}

}  // namespace

std::optional<std::string> read_index_parts(const std::filesystem::path& file, std::string_view magic) {
  auto text = contents_of(file);
  std::uint32_t sum = 0;
  if (!text.starts_with(magic) || text.size() < magic.size() + sizeof sum) return std::nullopt;
  std::memcpy(&sum, text.data() + text.size() - sizeof sum, sizeof sum);
  text.resize(text.size() - sizeof sum);
  if (checksum(text) != sum) return std::nullopt;
  return text.erase(0, magic.size());
}

void write_index_parts(IndexOutput output, const std::filesystem::path& file, std::string_view dataset) {
  output.put(checksum(output.text()));
  try {
    AtomicFile out(file, {.sync = false});
    out.write(std::as_bytes(std::span(output.text())));
    out.commit();
  } catch (const std::system_error& error) {
    log(LogLevel::warning, fmt::format("{}: the index cache {} cannot be written: {}", dataset, file.string(),
                                       errno_text(error.code().value())));
  }
}

bool may_change_unnoticed(std::int64_t modified) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(modified) > now - kTimeGranularity;
}

}  // namespace lockstep::data
