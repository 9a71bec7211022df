# SPDX-License-Identifier: BSD-3-Clause
include_guard()
include(CMakePackageConfigHelpers)

# Install rules: libraries, headers, the lockstep command, and the files that find_package(Lockstep) reads.
function(lockstep_add_install_rules)
  set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")
  foreach(component IN LISTS LOCKSTEP_COMPONENTS)
    get_property(targets GLOBAL PROPERTY LOCKSTEP_TARGETS_${component})
    install(TARGETS ${targets} EXPORT Lockstep_${component})
    install(EXPORT Lockstep_${component} NAMESPACE Lockstep:: DESTINATION "${package_dir}")
  endforeach()
  foreach(program lockstep_cli lockstep_bench lockstep_ckpt lockstep_doctor lockstep_plan)
    if(TARGET ${program})
      install(TARGETS ${program} RUNTIME)
    endif()
  endforeach()
  set(not_built)
  if(NOT LOCKSTEP_BUILD_KIT)
    set(not_built REGEX "include/lockstep/(data|metrics|models|training|transforms|lockstep\\.h|checkpoint(\\.h|/[^s]))" EXCLUDE)
  endif()
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/lockstep" TYPE INCLUDE FILES_MATCHING PATTERN "*.h" ${not_built})
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
    TYPE DOC)
  set(package_libtorch "${LOCKSTEP_LIBTORCH_PREFIX}")
  set(package_such_as ", such as ${package_libtorch}")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in"
    "${CMAKE_BINARY_DIR}/package/LockstepConfig.cmake" INSTALL_DESTINATION "${package_dir}")
  # For machines that are not this one: it names no LibTorch of this machine. scripts/release makes packages of it.
  set(package_libtorch "")
  set(package_such_as "")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in"
    "${CMAKE_BINARY_DIR}/package/elsewhere/LockstepConfig.cmake" INSTALL_DESTINATION "${package_dir}")
  # It replaces the one above, from which its time of configuring differs by less than CMake looks at.
  install(CODE "set(ENV{CMAKE_INSTALL_ALWAYS} 1)" COMPONENT elsewhere EXCLUDE_FROM_ALL)
  install(FILES "${CMAKE_BINARY_DIR}/package/elsewhere/LockstepConfig.cmake" DESTINATION "${package_dir}"
    COMPONENT elsewhere EXCLUDE_FROM_ALL)
  write_basic_package_version_file("${CMAKE_BINARY_DIR}/package/LockstepConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${CMAKE_BINARY_DIR}/package/LockstepConfig.cmake" "${CMAKE_BINARY_DIR}/package/LockstepConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/LockstepLibTorch.cmake" "${PROJECT_SOURCE_DIR}/cmake/LockstepCuda.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/LockstepWebP.cmake" "${PROJECT_SOURCE_DIR}/cmake/LockstepPrecompile.cmake"
    DESTINATION "${package_dir}")
endfunction()
