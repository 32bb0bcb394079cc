#!/bin/bash
# Trains a study in ten jobs of a Slurm array: sbatch examples/clusters/job_array.sh
#SBATCH --array=1-10
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --requeue
export TF_NUM_INTRAOP_THREADS=4 TF_NUM_INTEROP_THREADS=4
.venv/bin/python programs/sweep.py --study=configs/studies/methods_on_digits.py \
    --output_dir=runs/methods_on_digits --part="$SLURM_ARRAY_TASK_ID/10"
