// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <iostream>
#include <memory>

#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/throw_error.h"
#include "checkpoint_file.h"
#include "commands.h"
#include "leaves.h"
#include "progress.h"
#include "serialize/zip.h"

namespace lockstep::ckpt {
namespace {

// Finds unreadable sectors. The format has no checksums.
void read_whole(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), std::ssize(piece))) {
  }
  if (in.bad() || !in.eof())
    throw_error<CheckpointReadError>("{}: cannot be read to its end; check the disk", file);
}

// Assembles nothing, so that a folder larger than memory can be verified.
std::string verify_folder(const std::string& folder) {
  const distributed_checkpoint::Reader reader(folder);
  const auto progress = reading_progress(folder);
  reader.verify();
  return fmt::format("{} entries, every part is there, checksums match", reader.keys().size());
}

std::string verify(const std::string& file) {
  const auto kind = kind_to_read(file);
  if (kind == FileKind::folder) return verify_folder(file);
  const auto progress = reading_progress(file);
  // Mapped, so that a file larger than memory can be verified.
  const auto checkpoint = read_checkpoint(file, {.mmap = true, .verify = true});
  const auto count = leaves_of(checkpoint.value).size();
  const bool is_zip = kind == FileKind::torch_file &&
                      serialize::ZipReader::looks_like_zip(*serialize::open_file(file, false));
  if (is_zip) return fmt::format("{} entries, checksums match", count);
  read_whole(file);
  return fmt::format("{} entries; the format has no checksums", count);
}

void print_count(int count, std::size_t all, const char* what) {
  if (count > 0) std::cout << fmt::format("{} of {} checkpoints {}\n", count, all, what) << std::flush;
}

int verify_all(const std::vector<std::string>& files) {
  int damaged = 0;
  int unreadable = 0;
  for (const auto& file : files) {
    try {
      std::cout << fmt::format("{}: OK, {}\n", file, verify(file)) << std::flush;
    } catch (const CheckpointReadError& error) {
      ++unreadable;
      std::cout << fmt::format("{}; it may be intact\n", error.what()) << std::flush;
    } catch (const CheckpointError& error) {
      ++damaged;
      std::cout << error.what() << std::endl;
    }
  }
  print_count(damaged, files.size(), "are damaged or missing");
  print_count(unreadable, files.size(),
              "cannot be read and may be intact: check permissions, disk and memory, then verify again");
  return damaged + unreadable > 0 ? 1 : 0;
}

}  // namespace

Command add_verify_command(CLI::App& app) {
  const auto files = std::make_shared<std::vector<std::string>>();
  auto* command =
      app.add_subcommand("verify", "Check that checkpoints are intact; exit code 1 if one is not");
  command->add_option("files", *files, "Checkpoints")->required();
  return {command, [files] { return verify_all(*files); }};
}

}  // namespace lockstep::ckpt
