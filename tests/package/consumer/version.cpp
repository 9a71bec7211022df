// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/version.h>

// The build gives the version that CMake found.
#define TEXT(number) #number
#define TEXT_OF(number) TEXT(number)
static constexpr const char* kHeaders =
    TEXT_OF(LOCKSTEP_VERSION_MAJOR) "." TEXT_OF(LOCKSTEP_VERSION_MINOR) "." TEXT_OF(LOCKSTEP_VERSION_PATCH);

int main() { return lockstep::version() == FOUND_VERSION && lockstep::version() == kHeaders ? 0 : 1; }
