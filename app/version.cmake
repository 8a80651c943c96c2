# Writes app/version_data.h at every build, and changes it only if its contents change: a new commit recompiles only
# version.cpp. Run by `cmake -P` with SOURCE, OUTPUT, VERSION, CXX_COMPILER, CUDA_COMPILER, BUILD, and BUILT_MPI,
# BUILT_HDF5 ...: versions of the headers, "none" by default.
set(commit unknown)  # if built from a tarball or without git
set(modified 0)
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE head RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(modified 1)
    endif()
  endif()
endif()
set(text "#define TRI_VERSION \"${VERSION}\"\n"
         "#define TRI_COMMIT \"${commit}\"\n"
         "#define TRI_COMMIT_MODIFIED ${modified}\n"
         "#define TRI_CXX_COMPILER \"${CXX_COMPILER}\"\n"
         "#define TRI_CUDA_COMPILER \"${CUDA_COMPILER}\"\n"
         "#define TRI_BUILD \"${BUILD}\"\n")
foreach(library MPI HDF5 CUDA NCCL CUBLAS CUDNN)
  if(NOT BUILT_${library})
    set(BUILT_${library} none)
  endif()
  list(APPEND text "#define TRI_BUILT_${library} \"${BUILT_${library}}\"\n")
endforeach()
string(CONCAT text ${text})
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
