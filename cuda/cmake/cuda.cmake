# The module _cuda, with nvcc (the system's, or that of the CUDA wheels beside this Python) and NVSHMEM (its wheel, or a
# folder that NVSHMEM_HOME names). Included where MGG_CUDA is not OFF; what is missing ends an ON build by name, and
# leaves an AUTO build without _cuda.
execute_process(COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('platlib'))"
                OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE site)
# PATH first: what a site's module has loaded.
find_program(MGG_NVCC nvcc PATHS ENV CUDA_HOME "${site}/nvidia/cu13" /usr/local/cuda PATH_SUFFIXES bin)
find_path(MGG_NVSHMEM nvshmem.h HINTS ENV NVSHMEM_HOME PATHS "${site}/nvidia/nvshmem" PATH_SUFFIXES include)
find_file(MGG_NVSHMEM_HOST NAMES libnvshmem_host.so.3 HINTS "${MGG_NVSHMEM}/../lib" "${MGG_NVSHMEM}/../lib64")
find_file(MGG_NVSHMEM_DEVICE NAMES libnvshmem_device.a HINTS "${MGG_NVSHMEM}/../lib" "${MGG_NVSHMEM}/../lib64")

set(missing "")
if(NOT MGG_NVCC)
  string(APPEND missing " nvcc (the CUDA toolkit, or make cuda)")
endif()
if(NOT MGG_NVSHMEM OR NOT MGG_NVSHMEM_HOST OR NOT MGG_NVSHMEM_DEVICE)
  string(APPEND missing " NVSHMEM (pip install nvidia-nvshmem-cu13 before the build, or NVSHMEM_HOME)")
endif()

# A100, H100 and H200, B200; other architectures by -DCMAKE_CUDA_ARCHITECTURES. sm_100 has what was compiled for
# compute_90: kernels use nothing newer, and half of what nvcc takes is spent before an architecture matters.
set(codes "")
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(codes -gencode "arch=compute_80,code=sm_80" -gencode "arch=compute_90,code=[sm_90,sm_100]")
  list(JOIN codes " " flags)
  string(APPEND CMAKE_CUDA_FLAGS " ${flags}")
endif()
# The wheels keep libraries in lib, where nvcc looks in lib64.
set(libraries "")
if(MGG_NVCC)
  get_filename_component(toolkit "${MGG_NVCC}" DIRECTORY)
  get_filename_component(toolkit "${toolkit}" DIRECTORY)
  if(EXISTS "${toolkit}/lib/libcudart_static.a")
    set(libraries "-L${toolkit}/lib")
    string(APPEND CMAKE_CUDA_FLAGS " ${libraries}")
  endif()
endif()
# An nvcc that is too old for an architecture, or for this compiler, must not end the build of everything else.
if(NOT missing)
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    if(architecture MATCHES "^([0-9]+)")
      list(APPEND codes -gencode "arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1}")
    endif()
  endforeach()
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/try_nvcc.cu"
       "__global__ void nothing() {}\nint main() { nothing<<<1, 1>>>(); }\n")
  execute_process(COMMAND "${MGG_NVCC}" -std=c++17 ${libraries} ${codes} -o try_nvcc try_nvcc.cu
                  WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}" RESULT_VARIABLE nvcc_failed
                  OUTPUT_VARIABLE nvcc_said ERROR_VARIABLE nvcc_said)
  if(nvcc_failed)
    string(REGEX MATCH "[^\n]*(fatal|error)[^\n]*" nvcc_said "${nvcc_said}")
    string(APPEND missing " an nvcc that compiles with ${codes} (${MGG_NVCC} does not: ${nvcc_said})")
  endif()
endif()
if(missing)
  if(MGG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MGG_CUDA=ON, but missing:${missing}")
  endif()
  message(STATUS "CUDA: built without GPU kernels; missing:${missing}")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${MGG_NVCC}")
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
message(STATUS "CUDA: ${MGG_NVCC} ${CMAKE_CUDA_COMPILER_VERSION}, NVSHMEM in ${MGG_NVSHMEM}")

add_library(nvshmem_host SHARED IMPORTED)
set_target_properties(nvshmem_host PROPERTIES IMPORTED_LOCATION "${MGG_NVSHMEM_HOST}"
                      INTERFACE_INCLUDE_DIRECTORIES "${MGG_NVSHMEM}")
add_library(nvshmem_device STATIC IMPORTED)
set_target_properties(nvshmem_device PROPERTIES IMPORTED_LOCATION "${MGG_NVSHMEM_DEVICE}"
                      IMPORTED_LINK_INTERFACE_LANGUAGES CUDA)

# What NVRTC compiles behind tapes, as one text in a string: it finds no headers.
set(tape_list "${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu/edges/tape_headers.txt")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${tape_list}")
file(STRINGS "${tape_list}" tape_headers)
set(tape_text "")
foreach(name IN LISTS tape_headers)
  set(header "${CMAKE_CURRENT_SOURCE_DIR}/cuda/${name}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(READ "${header}" text)
  string(REGEX REPLACE "#(include|pragma once)[^\n]*" "" text "${text}")
  string(APPEND tape_text "${text}")
endforeach()
file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/tape_headers/tape_headers.h"
     CONTENT "constexpr const char* tape_headers = R\"headers(${tape_text})headers\";\n")

# Sources that are compiled once per type of rows, the longest first.
set(cuda_objects)
foreach(source sums/get sums/halo sums/aggregate edges/edges)
  get_filename_component(name ${source} NAME)
  foreach(rows float Float16 BFloat16)
    add_library(cuda_${name}_${rows} OBJECT cuda/gpu/${source}.cu)
    target_compile_definitions(cuda_${name}_${rows} PRIVATE MGG_ROWS=${rows})
    list(APPEND cuda_objects cuda_${name}_${rows})
  endforeach()
endforeach()
foreach(source gpu/rows/rows gpu/sampling/sample gpu/traversal/traverse runtime/transport)
  get_filename_component(name ${source} NAME)
  add_library(cuda_${name} OBJECT cuda/${source}.cu)
  list(APPEND cuda_objects cuda_${name})
endforeach()

# Draws by weight have the bits of the host's.
target_compile_options(cuda_sample PRIVATE -fmad=false)

nanobind_add_module(_cuda NB_STATIC
                    cuda/python/module_cuda.cpp cuda/python/module_cuda_edges.cpp cuda/python/module_device.cpp
                    cuda/python/module_cuda_traversal.cpp cuda/python/module_nvshmem.cpp cuda/gpu/load_all.cpp cuda/runtime/runtime_cuda.cpp cuda/runtime/runtime_nvshmem.cpp)
foreach(objects IN LISTS cuda_objects)
  target_include_directories(${objects} PRIVATE cuda cuda/include)
  target_include_directories(${objects} SYSTEM PRIVATE "${MGG_NVSHMEM}")
  set_target_properties(${objects} PROPERTIES CUDA_SEPARABLE_COMPILATION ON)
  # 821: NVSHMEM's own headers leave static functions unused.
  target_compile_options(${objects} PRIVATE -Wno-deprecated-gpu-targets "-Xcompiler=-Wall" "--diag-suppress=821")
  target_sources(_cuda PRIVATE $<TARGET_OBJECTS:${objects}>)
endforeach()
target_include_directories(_cuda PRIVATE cuda cuda/include "${CMAKE_CURRENT_BINARY_DIR}/tape_headers")
target_include_directories(_cuda SYSTEM PRIVATE "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
target_compile_options(_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
target_link_libraries(_cuda PRIVATE nvshmem_device nvshmem_host)
target_link_options(_cuda PRIVATE LINKER:--exclude-libs,ALL)
# Found beside the package where its wheel is, else where it was at the build (NVSHMEM_HOME).
get_filename_component(nvshmem_folder "${MGG_NVSHMEM_HOST}" DIRECTORY)
set_target_properties(_cuda PROPERTIES CUDA_SEPARABLE_COMPILATION ON CUDA_RESOLVE_DEVICE_SYMBOLS ON LINKER_LANGUAGE CXX
                      INSTALL_RPATH "$ORIGIN/../nvidia/nvshmem/lib;${nvshmem_folder}")
install(TARGETS _cuda LIBRARY DESTINATION mgg_hpc)
mgg_stub(_cuda)
