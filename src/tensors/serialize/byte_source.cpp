// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <lockstep/base/world.h>

#include "base/unique_fd.h"

namespace lockstep::serialize {
namespace {

// Enough for a thread to be worth its start.
constexpr std::int64_t kReadPiece = 8 << 20;

// A file's pages, private to this process.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t size, const std::string& name) : size_(size) {
    address_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (address_ == MAP_FAILED)
      throw_error<CheckpointReadError>("{}: cannot be mapped: {}", name, errno_text(errno));
  }
  ~Mapping() { ::munmap(address_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return static_cast<char*>(address_); }

 private:
  void* address_ = nullptr;
  std::uint64_t size_;
};

class FileSource : public ByteSource {
 public:
  FileSource(const std::filesystem::path& file, bool mapped, const std::optional<FilePart>& part)
      : name_(file.string()) {
    fd_.reset(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd_ || ::fstat(fd_.get(), &status) != 0) fail_to_read(name_, errno);
    if (S_ISDIR(status.st_mode)) fail("it is a folder, not a file");
    if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
    size_ = static_cast<std::uint64_t>(status.st_size);
    if (part) restrict_to(*part);
    if (mapped && size_ > 0) mapping_ = std::make_shared<Mapping>(fd_.get(), size_, name_);
  }

  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return size_; }

  c10::Storage storage(std::uint64_t offset, std::uint64_t bytes, std::size_t alignment) const override {
    check_range(offset, bytes);
    if (mapping_ && bytes > 0 && offset % alignment == 0) {
      return at::from_blob(
                 mapping_->data() + offset, {static_cast<std::int64_t>(bytes)},
                 [mapping = mapping_](void*) {}, at::kByte)
          .storage();
    }
    auto storage = empty_storage(bytes, name_);
    auto* data = static_cast<char*>(storage.mutable_data());
    at::parallel_for(0, static_cast<std::int64_t>(bytes), kReadPiece,
                     [&](std::int64_t first, std::int64_t last) {
                       do_read(offset + static_cast<std::uint64_t>(first),
                               {data + first, static_cast<std::size_t>(last - first)});
                     });
    return storage;
  }

 protected:
  void do_read(std::uint64_t offset, std::span<char> into) const override {
    while (!into.empty()) {
      const auto count = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(start_ + offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_to_read(name_, errno);
      if (count == 0) fail("it became shorter while it was read");
      offset += static_cast<std::uint64_t>(count);
      into = into.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw_error<CheckpointError>("{}: cannot be read: {}", name_, why);
  }

  void restrict_to(const FilePart& part) {
    if (part.offset > size_ || part.length > size_ - part.offset) {
      throw_error<CheckpointError>("{}: it is cut short: {} bytes are expected at {}, but it ends at {}",
                                   name_, part.length, part.offset, size_);
    }
    start_ = part.offset;
    size_ = part.length;
  }

  std::string name_;
  UniqueFd fd_;
  std::uint64_t start_ = 0;  // of the part that is read
  std::uint64_t size_ = 0;
  std::shared_ptr<Mapping> mapping_;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(std::span<const char> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  c10::Storage storage(std::uint64_t offset, std::uint64_t bytes, std::size_t /*alignment*/) const override {
    check_range(offset, bytes);
    auto storage = empty_storage(bytes, name_);
    if (bytes > 0) std::memcpy(storage.mutable_data(), bytes_.data() + offset, bytes);
    return storage;
  }

 protected:
  void do_read(std::uint64_t offset, std::span<char> into) const override {
    std::ranges::copy(bytes_.subspan(offset, into.size()), into.begin());
  }

 private:
  std::span<const char> bytes_;
  std::string name_;
};

}  // namespace

c10::Storage empty_storage(std::uint64_t bytes, const std::string& name) {
  try {
    return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte).storage();
  } catch (const c10::Error&) {
    throw_error<CheckpointReadError>("{}: there is no memory for {} bytes of it", name, bytes);
  }
}

void ByteSource::check_range(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset <= size() && bytes <= size() - offset) return;
  throw_error<CheckpointError>(
      "{}: it is damaged or cut short: {} bytes are expected at {}, but it ends at {}", name(), bytes, offset,
      size());
}

void ByteSource::read(std::uint64_t offset, std::span<char> into) const {
  check_range(offset, into.size());
  do_read(offset, into);
}

std::string ByteSource::read_text(std::uint64_t offset, std::uint64_t bytes) const {
  check_range(offset, bytes);
  std::string text(bytes, '\0');
  do_read(offset, text);
  return text;
}

std::unique_ptr<ByteSource> open_file(const std::filesystem::path& file, bool mapped) {
  return std::make_unique<FileSource>(file, mapped, std::nullopt);
}

std::unique_ptr<ByteSource> open_part(const std::filesystem::path& file, const FilePart& part) {
  return std::make_unique<FileSource>(file, false, part);
}

void fail_to_read(const std::string& file, int code) {
  const auto what = fmt::format("{}: cannot be read: {}", file, errno_text(code));
  if (code == ENOENT || code == ENOTDIR) {
    const bool shared = current_world().size > 1;
    throw CheckpointError(
        shared ? what + "; if another rank writes it, call barrier() on all ranks before it is read" : what,
        {.file = file});
  }
  throw CheckpointReadError(what, {.file = file});
}

std::unique_ptr<ByteSource> open_bytes(std::span<const char> bytes, std::string name) {
  return std::make_unique<MemorySource>(bytes, std::move(name));
}

}  // namespace lockstep::serialize
