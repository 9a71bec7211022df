// SPDX-License-Identifier: BSD-3-Clause
#include "verify_command.h"

#include <array>
#include <fstream>
#include <iostream>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "byte_counts.h"
#include "checkpoint_file.h"
#include "file_kind.h"
#include "leaves.h"
#include "progress.h"

namespace lockstep::ckpt {
namespace {

// Finds sectors that cannot be read: the format has nothing to compare the bytes with.
void read_whole(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), std::ssize(piece))) {
  }
  if (in.bad() || !in.eof()) throw CheckpointReadError(fmt::format("{}: cannot be read to its end", file));
}

bool is_zip(const std::string& file) {
  std::array<char, 2> start{};
  std::ifstream(file, std::ios::binary).read(start.data(), start.size());
  return start[0] == 'P' && start[1] == 'K';
}

// Nothing is put together, so that a folder larger than the memory can be checked.
std::string verify_folder(const std::string& folder) {
  const distributed_checkpoint::Reader reader(folder);
  const auto start = bytes_read();
  const Progress progress(fmt::format("reading {}", folder), bytes_at(folder),
                          [start] { return bytes_read() - start; });
  reader.verify();
  return fmt::format("{} entries, every part is there, checksums match", reader.keys().size());
}

// What has been found to be right.
std::string verify(const std::string& file) {
  const auto kind = kind_to_read(file);
  if (kind == FileKind::folder) return verify_folder(file);
  const auto start = bytes_read();
  const Progress progress(fmt::format("reading {}", file), bytes_at(file),
                          [start] { return bytes_read() - start; });
  // Mapped, so that a file larger than the memory can be checked.
  const auto checkpoint = read_checkpoint(file, {.mmap = true, .verify = true});
  const auto count = leaves_of(checkpoint.value).size();
  if (kind == FileKind::torch_file && is_zip(file)) {
    return fmt::format("{} entries, checksums match", count);
  }
  read_whole(file);
  return fmt::format("{} entries; the format has no checksums", count);
}

void tell_count(int count, std::size_t all, const char* what) {
  if (count > 0) std::cout << fmt::format("{} of {} checkpoints {}\n", count, all, what) << std::flush;
}

}  // namespace

VerifyCommand::VerifyCommand(CLI::App& app)
    : command_(app.add_subcommand("verify", "Whether checkpoints are whole; exit code 1 when one is not")) {
  command_->add_option("files", files_, "Checkpoints")->required();
}

int VerifyCommand::run() const {
  int damaged = 0;
  int unreadable = 0;
  for (const auto& file : files_) {
    try {
      std::cout << fmt::format("{}: OK, {}\n", file, verify(file)) << std::flush;
    } catch (const CheckpointReadError& error) {
      ++unreadable;
      std::cout << fmt::format("{}; it may be whole\n", error.what()) << std::flush;
    } catch (const CheckpointError& error) {
      ++damaged;
      std::cout << error.what() << std::endl;
    }
  }
  tell_count(damaged, files_.size(), "are damaged or missing");
  tell_count(unreadable, files_.size(),
             "cannot be read, and may be whole: see to permissions, disk and memory, and verify again");
  return damaged + unreadable > 0 ? 1 : 0;
}

}  // namespace lockstep::ckpt
