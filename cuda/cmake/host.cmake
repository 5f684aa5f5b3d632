# The kernels for CPUs (_host), what graph files need (_graph), and the transport over OpenSHMEM (_shmem) where the machine
# has one.

# One source, compiled once per instruction set; module_host.cpp picks one at run time. all: every one that there is;
# native: the widest that this machine runs, which takes a third of the time; or a list of them.
set(MGG_ISAS all CACHE STRING "Instruction sets to compile kernels for: all, native, or a list of baseline, avx2, avx512")
set(isas ${MGG_ISAS})
if(MGG_ISAS MATCHES "^(all|native)$")
  set(isas baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND isas avx2 avx512)
  endif()
endif()
if(MGG_ISAS STREQUAL "native" AND "avx2" IN_LIST isas)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE features)
  set(isas baseline)
  if(features MATCHES "__AVX512CD__" AND features MATCHES "__AVX512BW__" AND features MATCHES "__AVX512DQ__" AND
     features MATCHES "__AVX512VL__")
    set(isas avx512)
  elseif(features MATCHES "__AVX2__" AND features MATCHES "__FMA__" AND features MATCHES "__BMI2__")
    set(isas avx2)
  endif()
endif()
message(STATUS "kernels for CPUs: ${isas}")
set(flags_avx2 -march=x86-64-v3)
set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
foreach(isa IN LISTS isas)
  add_library(kernels_${isa} OBJECT
    cuda/cpu/aggregate.cpp cuda/cpu/attention.cpp cuda/cpu/edges.cpp
    cuda/cpu/random.cpp cuda/cpu/sampling/copy_rows.cpp cuda/cpu/sampling/sample.cpp cuda/cpu/tapes/propagate.cpp)
  target_include_directories(kernels_${isa} PRIVATE cuda cuda/include)
  target_compile_definitions(kernels_${isa} PRIVATE MGG_ISA=${isa})
  # Products are rounded before they are added, in every tile alike: the same bits whichever way columns are cut.
  target_compile_options(kernels_${isa} PRIVATE -ffp-contract=off ${flags_${isa}}
                         -Wall -Wextra -Wno-psabi -Wno-maybe-uninitialized)
  target_link_libraries(kernels_${isa} PRIVATE OpenMP::OpenMP_CXX)
endforeach()

# NOMINSIZE: not for size, since the exchange and the floor are here.
nanobind_add_module(_host NB_STATIC NOMINSIZE
  cuda/python/module_edges.cpp cuda/python/module_gather.cpp cuda/python/module_host.cpp cuda/python/module_random.cpp
  cuda/python/module_sampling.cpp cuda/python/module_streams.cpp cuda/python/module_traversal.cpp
  cuda/python/host_schedule.cpp
  cuda/runtime/halo_exchange.cpp cuda/runtime/streaming/chunk_source.cpp cuda/runtime/streaming/chunk_stream.cpp
  cuda/cpu/sampling/gather.cpp
  cuda/cpu/traversal/bfs.cpp cuda/cpu/traversal/components.cpp cuda/cpu/traversal/pagerank.cpp
  cuda/cpu/traversal/sssp.cpp
  cuda/bench/module_floor.cpp
  cuda/bench/gather_floor.cpp)
# These only call what does the work; optimising them took as long as compiling them.
set_source_files_properties(cuda/python/module_edges.cpp cuda/python/module_host.cpp
  PROPERTIES COMPILE_OPTIONS -O1)
target_include_directories(_host PRIVATE cuda cuda/include)
target_link_libraries(_host PRIVATE OpenMP::OpenMP_CXX)
target_compile_options(_host PRIVATE -Wall -Wextra)
foreach(isa IN LISTS isas)
  target_link_libraries(_host PRIVATE kernels_${isa})
  string(TOUPPER ${isa} upper)
  target_compile_definitions(_host PRIVATE MGG_HAVE_${upper}=1)
endforeach()
install(TARGETS _host LIBRARY DESTINATION mgg_hpc)
mgg_stub(_host)

# Native code for graph files, orders and plans (_graph), on machines of any kind.
nanobind_add_module(_graph NB_STATIC NOMINSIZE
  cuda/graph/module_graph.cpp cuda/graph/buckets.cpp cuda/graph/generate.cpp cuda/graph/order.cpp
  cuda/graph/parse/parse.cpp cuda/graph/parse/parse_table.cpp cuda/graph/partition.cpp cuda/graph/scores.cpp
  cuda/graph/split.cpp cuda/graph/symmetry.cpp cuda/graph/blocks.cpp cuda/graph/local_graph.cpp cuda/graph/check_traversal.cpp)
target_include_directories(_graph PRIVATE cuda cuda/include)
target_compile_options(_graph PRIVATE -O3 -Wall -Wextra)
target_link_libraries(_graph PRIVATE OpenMP::OpenMP_CXX)
install(TARGETS _graph LIBRARY DESTINATION mgg_hpc)
mgg_stub(_graph)

# OpenSHMEM, where the machine has one: for jobs over several nodes. What it needs is asked of its own compiler driver.
find_program(OSHCXX NAMES oshc++ oshcxx oshCC)
if(OSHCXX)
  foreach(what incdirs libdirs libs)
    execute_process(COMMAND "${OSHCXX}" --showme:${what} OUTPUT_VARIABLE shmem_${what}
                    RESULT_VARIABLE shmem_failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(shmem_failed)
      set(shmem_libs)
      break()
    endif()
    separate_arguments(shmem_${what})
  endforeach()
endif()
if(shmem_libs)
  message(STATUS "OpenSHMEM: ${OSHCXX}")
  nanobind_add_module(_shmem NB_STATIC cuda/python/module_shmem.cpp cuda/runtime/runtime_shmem.cpp)
  target_include_directories(_shmem PRIVATE cuda cuda/include)
  target_include_directories(_shmem SYSTEM PRIVATE ${shmem_incdirs})
  target_link_directories(_shmem PRIVATE ${shmem_libdirs})
  target_link_libraries(_shmem PRIVATE ${shmem_libs})
  target_compile_options(_shmem PRIVATE -Wall -Wextra)
  # A site's MPI lies in a folder of its own, which a loaded module (LD_LIBRARY_PATH) may replace.
  set_target_properties(_shmem PROPERTIES INSTALL_RPATH "${shmem_libdirs}")
  install(TARGETS _shmem LIBRARY DESTINATION mgg_hpc)
  mgg_stub(_shmem)
else()
  message(STATUS "OpenSHMEM: no oshc++; built without the backend for several nodes")
endif()
