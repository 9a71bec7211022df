// SPDX-License-Identifier: BSD-3-Clause
#include "training/meter.h"

#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

training::Meter meter_of(const Value& given) {
  training::Meter meter{.n = given["n"].as_int(),
                        .initial = given["initial"].as_int(),
                        .elapsed = given["elapsed"].as_double(),
                        .desc = given["prefix"].as_string(),
                        .unit = given["unit"].as_string(),
                        .postfix = given["postfix"].as_string()};
  if (!given["total"].is<None>()) meter.total = given["total"].as_int();
  if (!given["rate"].is<None>()) meter.rate = given["rate"].as_double();
  return meter;
}

TEST(TrainingOutput, MeterIsAsTqdms) {
  const TempFolder folder;
  run_python("parity/meters.py", {.args = {folder.file("meters.pt")}});
  const auto lines = load(folder.file("meters.pt"));
  for (const auto& given : lines["meters"].as_items()) {
    const auto meter = meter_of(given);
    EXPECT_EQ(training::meter_text(meter, static_cast<int>(given["ncols"].as_int())),
              given["line"].as_string())
        << repr(given);
    EXPECT_EQ(training::meter_text(meter, 0), given["plain"].as_string()) << repr(given);
  }
  for (const auto& [number, text] : lines["numbers"].as_dict()) {
    EXPECT_EQ(training::postfix_text({{"x", number.as_double()}}), "x=" + text.as_string());
  }
}

}  // namespace
}  // namespace lockstep::testing
