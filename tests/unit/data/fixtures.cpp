// SPDX-License-Identifier: BSD-3-Clause
#include "unit/data/fixtures.h"

#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <stdlib.h>

#include <fmt/format.h>
#include <zlib.h>

namespace lockstep::data::testing {
namespace {

std::string hash(const std::string& bytes) {
  return sha256_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

std::string tar_header(const std::string& name, std::size_t size) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  header.replace(124, 11, fmt::format("{:011o}", size));
  header.replace(148, 8, 8, ' ');
  header[156] = '0';
  header.replace(257, 5, "ustar");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  return header;
}

}  // namespace

ScopedVariable::ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
  if (const char* old = ::getenv(name_.c_str())) old_ = old;
  ::setenv(name_.c_str(), value.c_str(), 1);
}

ScopedVariable::~ScopedVariable() { ::setenv(name_.c_str(), old_.c_str(), 1); }

void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

void write_gzip(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::create_directories(file.parent_path());
  const gzFile out = ::gzopen(file.c_str(), "wb");
  ::gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(out);
}

std::string bytes_of_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string idx_bytes(const std::vector<std::uint32_t>& dims, const std::string& values) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const auto dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift & 0xff);
  }
  return bytes + values;
}

std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string tar;
  for (const auto& [name, contents] : files) {
    tar += tar_header(name, contents.size()) + contents;
    tar.resize((tar.size() + 511) / 512 * 512);
  }
  return tar + std::string(1024, '\0');
}

std::string tiny_images() {
  return idx_bytes({2, 2, 3},
                   {'\0', '\1', '\2', '\3', '\4', '\5', '\6', '\7', '\x10', '\x20', '\x7f', '\xff'});
}
std::string tiny_labels() { return idx_bytes({2}, {'\7', '\3'}); }

RemoteDataset tiny_dataset() {
  return {.name = "Tiny",
          .subfolder = "Tiny/raw",
          .files = {{"images", hash(tiny_images())}, {"labels", hash(tiny_labels())}},
          .sources = {}};
}

std::string make_mirror(const std::filesystem::path& folder) {
  write_gzip(folder / "images.gz", tiny_images());
  write_gzip(folder / "labels.gz", tiny_labels());
  return "file://" + folder.string();
}

}  // namespace lockstep::data::testing
