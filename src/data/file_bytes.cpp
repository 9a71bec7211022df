// SPDX-License-Identifier: BSD-3-Clause
#include "data/file_bytes.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <zlib.h>

#include <lockstep/base/error.h>
#include <lockstep/base/unique_fd.h>

namespace lockstep::data {
namespace {

// zlib counts in 32 bits, so data passes through it in pieces.
constexpr std::size_t kPiece = std::size_t{1} << 30;
constexpr std::size_t kFirstGuess = std::size_t{1} << 16;
// DEFLATE cannot do better than about 1032 to 1, so a size that promises more is not believed.
constexpr std::size_t kMostCompression = 1100;

class Inflater {
 public:
  explicit Inflater(ByteSpan input) : input_(input) {
    if (::inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw DataError("zlib could not be started");
  }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out` as far as the data reaches; returns the bytes written. Throws when the data is damaged.
  std::size_t read(std::span<std::uint8_t> out, const std::string& name) {
    std::size_t written = 0;
    while (written < out.size() && !ended_) {
      const auto room = std::min(out.size() - written, kPiece);
      const auto given = std::min(input_.size(), kPiece);
      stream_.next_in = const_cast<Bytef*>(input_.data());
      stream_.avail_in = static_cast<uInt>(given);
      stream_.next_out = out.data() + written;
      stream_.avail_out = static_cast<uInt>(room);
      const int code = ::inflate(&stream_, Z_NO_FLUSH);
      input_ = input_.subspan(given - stream_.avail_in);
      written += room - stream_.avail_out;
      if (code == Z_STREAM_END) {
        next_member(name);
      } else if (code == Z_BUF_ERROR || (code == Z_OK && input_.empty() && stream_.avail_out != 0)) {
        throw DataError(fmt::format("{}: the gzip data is cut short", name));
      } else if (code != Z_OK) {
        throw DataError(fmt::format("{}: the gzip data is damaged ({})", name,
                                    stream_.msg != nullptr ? stream_.msg : "no detail"));
      }
    }
    return written;
  }
  bool ended() const { return ended_; }

 private:
  void next_member(const std::string& name) {
    ended_ = input_.empty();
    if (ended_) return;
    if (!is_gzip(input_)) throw DataError(fmt::format("{}: other bytes follow the gzip data", name));
    ::inflateReset(&stream_);
  }

  ByteSpan input_;
  z_stream stream_{};
  bool ended_ = false;
};

// The last four bytes of gzip data are its plain size, modulo 2^32.
std::size_t guess_plain_size(ByteSpan compressed) {
  if (compressed.size() < 4) return kFirstGuess;
  const auto tail = compressed.last(4);
  const std::size_t promised =
      tail[0] | tail[1] << 8 | tail[2] << 16 | static_cast<std::size_t>(tail[3]) << 24;
  return std::clamp(promised, std::size_t{1}, compressed.size() * kMostCompression);
}

std::span<std::uint8_t> writable(at::Tensor& bytes, std::size_t from) {
  return std::span(bytes.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel()))
      .subspan(from);
}

at::Tensor read_raw(const std::filesystem::path& file) {
  const auto fail = [&file] {
    return DataError(fmt::format("{}: cannot be read: {}", file.string(), errno_text(errno)));
  };
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) throw fail();
  if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: is not a regular file", file.string()));
  auto bytes = at::empty({status.st_size}, at::kByte);
  for (auto left = writable(bytes, 0); !left.empty();) {
    const auto count = ::read(fd.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw fail();
    if (count == 0) throw DataError(fmt::format("{}: was cut short while it was read", file.string()));
    left = left.subspan(static_cast<std::size_t>(count));
  }
  return bytes;
}

}  // namespace

ByteSpan as_bytes(const at::Tensor& bytes) {
  return {bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())};
}

bool is_gzip(ByteSpan bytes) { return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b; }

at::Tensor inflate_gzip(ByteSpan compressed, const std::string& name) {
  Inflater inflater(compressed);
  auto plain = at::empty({static_cast<std::int64_t>(guess_plain_size(compressed))}, at::kByte);
  std::size_t size = 0;
  while (true) {
    size += inflater.read(writable(plain, size), name);
    if (inflater.ended()) return plain.narrow(0, 0, static_cast<std::int64_t>(size));
    plain.resize_({plain.numel() * 2 + static_cast<std::int64_t>(kFirstGuess)});
  }
}

at::Tensor read_file_bytes(const std::filesystem::path& file) {
  auto bytes = read_raw(file);
  return is_gzip(as_bytes(bytes)) ? inflate_gzip(as_bytes(bytes), file.string()) : bytes;
}

}  // namespace lockstep::data
