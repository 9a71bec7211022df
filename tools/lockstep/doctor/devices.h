// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <lockstep/machine/gpu.h>
#include <lockstep/machine/host.h>

namespace lockstep::cli {

/// What this host has, as `lockstep devices` shows it.
struct Devices {
  std::string host{};
  machine::Processor processor{};
  machine::Memory memory{};
  std::vector<machine::NumaNode> nodes{};
  machine::Gpus gpus{};
};

/// Of the host that this runs on, with its environment.
Devices read_devices();

/// One table; no line is longer than `width`.
std::string devices_text(const Devices& devices, std::optional<std::size_t> width);

nlohmann::json devices_json(const Devices& devices);

}  // namespace lockstep::cli
