// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_folder.h"

namespace lockstep::testing {

// A folder with a program "nvidia-smi", a script of ours.
class FakeSmi {
 public:
  // Runs `gpus` for queries of GPUs and `processes` for queries of processes.
  FakeSmi(const std::string& gpus, const std::string& processes) {
    const auto file = folder_.path() / "nvidia-smi";
    std::ofstream(file) << "#!/bin/sh\ncase \"$1\" in\n--query-gpu=*) " << gpus
                        << " ;;\n--query-compute-apps=*) " << processes << " ;;\n*) exit 99 ;;\nesac\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  // With it in front.
  std::string path() const { return folder_.path().string() + ":" + std::getenv("PATH"); }

 private:
  TempFolder folder_;
};

// Two GPUs: one busy with two processes, one that tells little.
inline FakeSmi two_gpus() {
  return {
      R"(echo '0, GPU-aaaa-1, 00000000:1B:00.0, 143771, 2048, 97, 54, 412.53, 700.00, 570.86.15, Default, Disabled, 0, NVIDIA H200'
echo '1, GPU-bbbb-2, 00000000:43:00.0, 24576, 1, [N/A], 31, [Not Supported], [N/A], 570.86.15, Exclusive_Process, [N/A], 3, NVIDIA A10, odd')",
      R"(echo 'GPU-aaaa-1, 4194301, 1536, /usr/bin/python3'
echo 'GPU-aaaa-1, 4194302, [N/A], ./train, 2')"};
}

}  // namespace lockstep::testing
