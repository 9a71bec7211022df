// SPDX-License-Identifier: BSD-3-Clause
#include "parity/ddp_record.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

namespace lockstep::testing {
namespace {

std::streamsize size_in_bytes(const Record& record) {
  return static_cast<std::streamsize>(record.values.size() * sizeof(float));
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace

std::filesystem::path record_file(const std::filesystem::path& folder, const std::string& name, int rank) {
  return folder / fmt::format("{}.{}", name, rank);
}

void write_records(const std::filesystem::path& file, const std::vector<Record>& records) {
  std::ofstream out(file, std::ios::binary);
  for (const auto& record : records) {
    out << record.name << ' ' << record.values.size() << '\n';
    out.write(reinterpret_cast<const char*>(record.values.data()), size_in_bytes(record));
  }
  if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}", file.string()));
}

std::vector<Record> read_records(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("{} is missing", file.string()));
  std::vector<Record> records;
  std::string name;
  for (std::size_t count = 0; in >> name >> count;) {
    Record record{.name = name, .values = std::vector<float>(count)};
    in.get();
    if (!in.read(reinterpret_cast<char*>(record.values.data()), size_in_bytes(record))) {
      throw std::runtime_error(fmt::format("{} is cut short in {}", file.string(), name));
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::string first_difference(const Record& python, const Record& ours) {
  if (python.name != ours.name) return fmt::format("Python has {}, we have {}", python.name, ours.name);
  if (python.values.size() != ours.values.size()) {
    return fmt::format("{}: {} values in Python, {} in ours", python.name, python.values.size(),
                       ours.values.size());
  }
  std::size_t first = 0;
  std::size_t differing = 0;
  for (std::size_t i = python.values.size(); i-- > 0;) {
    if (bits(python.values[i]) == bits(ours.values[i])) continue;
    first = i;
    ++differing;
  }
  if (differing == 0) return {};
  const float theirs = python.values[first];
  const float own = ours.values[first];
  return fmt::format(
      "{}: {} of {} values differ; first [{}]: Python {:.9g} ({:08x}), ours {:.9g} ({:08x}), off by {:.3g}",
      python.name, differing, python.values.size(), first, theirs, bits(theirs), own, bits(own),
      own - theirs);
}

}  // namespace lockstep::testing
