// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// A regular file in a tar archive.
struct TarMember {
  std::string path;
  std::int64_t begin;   // of its first header
  std::int64_t offset;  // of its contents
  std::int64_t size;    // of its contents
};

// Reads the headers of an archive one after another, and no contents: ustar, GNU and pax. Links, folders and
// devices are skipped. Throws DataError, which names the archive and the offset, when it is damaged or cut
// short, for sparse files, and for a global pax header that gives all files one path or size.
class TarReader {
 public:
  // `bytes` and `name`, which is for messages, outlive the reader. `begin`: of the first member to read.
  TarReader(std::string_view bytes, const std::string& name, std::int64_t begin = 0);

  // nullopt at the end of the archive.
  std::optional<TarMember> next();
  // Where next() continues.
  std::int64_t offset() const { return static_cast<std::int64_t>(at_); }

 private:
  std::string_view bytes_;
  const std::string& name_;
  std::size_t at_;
};

// The regular files of a tar archive by their path, as views of its bytes. Throws as TarReader does.
std::map<std::string, at::Tensor> read_tar(const at::Tensor& bytes, const std::string& name);

}  // namespace lockstep::data
